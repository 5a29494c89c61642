"""Of two servers each needs the vote of the other one, which it replaces."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psworker
from psserver.replication import watch
from psserver.replication.messages import Accepted, Message
from psserver.service.life import replicating
from psserver.service.replicas.link import Link
from pswire.exits import ExitCode
from tests.promises import promise
from tests.service.replicated import train
from tests.service.serving import PATIENCE, VARIABLES, serving, wait_until


@promise(
    "Of two servers with copies, the one that takes the other's place leads, also if a broken stream loses the vote."
)
def test_a_server_that_is_replaced_stays_until_the_other_one_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streams of both break when they go on after a pause."""
    lost: list[Message] = []
    send: Callable[..., None] = Link.send

    def loses(link: Link, message: Message, items: Iterable[Any], part: int) -> None:
        if isinstance(message, Accepted) and not lost:
            lost.append(message)
        else:
            send(link, message, items, part)

    monkeypatch.setenv("PS_REPLICAS", "2")
    monkeypatch.setattr(Link, "send", loses)
    # On a busy machine nobody is taken for dead, and what this test waits for is waited for.
    monkeypatch.setattr(watch, "SILENCE", PATIENCE)
    monkeypatch.setattr(replicating, "LEAST_PATIENCE", PATIENCE)
    overrides = ("cluster.replicas=2", "optimizer.name=adam")
    with serving(servers=2, out=tmp_path / "run", shared=True, overrides=overrides) as cluster:
        first, second = cluster.servers
        ones = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
        with psworker.connect(cluster.hosts, ones, name="w") as session:
            train(session, 2)

            def takes_over() -> bool:
                second.probe.stand()
                return second.probe.leads

            wait_until(takes_over, "the other server leads")
            assert first.ended() == ExitCode.REFUSED
            train(session, 2)
        assert lost
