"""Of two servers each needs the vote of the other one, which it replaces."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from psserver.replication.messages import Accepted, Message
from psserver.service.life import replicating
from psserver.service.replicas.link import ServerLink
from pswire.exits import ExitCode
from tests.promises import promise
from tests.service.replicated import copies, train
from tests.service.serving import PATIENCE, wait_until


@promise(
    "Of two servers with copies, the one that takes the other's place leads, also if a broken stream loses the vote."
)
def test_a_server_that_is_replaced_stays_until_the_other_one_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streams of both break when they go on after a pause."""
    lost: list[Message] = []
    send: Callable[..., None] = ServerLink.send

    def loses(link: ServerLink, message: Message, items: Iterable[Any], part: int) -> None:
        if isinstance(message, Accepted) and not lost:
            lost.append(message)
        else:
            send(link, message, items, part)

    monkeypatch.setattr(ServerLink, "send", loses)
    # What this test waits for is waited for.
    monkeypatch.setattr(replicating, "LEAST_PATIENCE", PATIENCE)
    with copies(2, tmp_path / "run") as (cluster, session):
        first, second = cluster.servers
        train(session, 2)

        def takes_over() -> bool:
            second.probe.stand()
            return second.probe.leads

        wait_until(takes_over, "the other server leads")
        assert first.ended() == ExitCode.REFUSED
        train(session, 2)
    assert lost
