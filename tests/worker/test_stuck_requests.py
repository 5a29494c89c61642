"""A connection that takes bytes and brings none: the request is cut, said, and made again on another connection."""

import logging
from typing import Any

import numpy as np
import pytest

from pswire import patience
from pswire.transport.framed_socket import FramedSocket
from tests.links import connect_link
from tests.service.serving import serving

WEIGHTS = {"w": np.zeros(50_000, np.float32)}


def test_a_payload_that_something_swallows_goes_over_another_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "stuck", lambda _: 0.5)
    monkeypatch.setattr(patience, "silence", lambda _: 0.3)
    swallowed: list[object] = []

    def swallowing(send: Any) -> Any:
        """Take the first payload, and have nobody see it."""

        def wrapped(self: object, message: Any, *more: Any) -> None:
            if sum(map(len, message)) > 100_000 and not swallowed:
                swallowed.append(self)
                return
            send(self, message, *more)

        return wrapped

    sender: Any = FramedSocket
    with serving(1) as cluster, caplog.at_level(logging.WARNING):
        session = connect_link(cluster.servers[0].address, WEIGHTS, transport="socket")
        # Version 0 is here.
        grant = session.ready()
        assert grant is not None
        monkeypatch.setattr(sender, "send", swallowing(sender.send))
        session.push(grant, {"w": np.ones(50_000, np.float32)})
        session.commit(grant, samples=1)
        grant = session.ready()
        assert grant is not None and grant.version == 1
        session.close("done")
    assert swallowed
    assert "nothing of a request to server 0 at" in caplog.text and "connecting again" in caplog.text


@pytest.mark.parametrize("timeout", [0.5, 3.0, 10.0, 600.0])
def test_a_piece_on_the_slowest_link_is_not_stuck(timeout: float) -> None:
    assert patience.stuck(timeout) >= patience.PIECE / patience.SLOWEST_LINK + patience.REQUEST_WAITS
