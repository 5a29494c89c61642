"""A connection that takes bytes and brings none: the request is cut, said, and made again on another connection."""

import logging
from typing import Any

import numpy as np
import pytest

import psworker
from pswire import patience
from pswire.addresses import Address
from pswire.transport.framed_socket import FramedSocket
from psworker.data import transport
from psworker.data.exchange import Exchange, GrpcStream
from psworker.data.transport import Transport
from tests.service.serving import serving

WEIGHTS = {"w": np.zeros(50_000, np.float32)}


@pytest.mark.parametrize("carrier", ["socket", "grpc"])
def test_a_payload_that_something_swallows_goes_over_another_connection(
    carrier: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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

    sender: Any = FramedSocket if carrier == "socket" else GrpcStream
    with serving(1) as cluster, caplog.at_level(logging.WARNING):
        session = psworker.connect(cluster.servers[0].address, WEIGHTS, transport=carrier)
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


def test_a_request_that_moves_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    class Clock:
        @staticmethod
        def now() -> float:
            return now[0]

    monkeypatch.setattr(transport, "running", Clock)
    cut: list[str] = []
    channel: Any = None
    made = Transport(0, Address("127.0.0.1", 7070), channel, "grpc", False, stuck=5.0)
    monkeypatch.setattr(Exchange, "close", lambda self: cut.append("cut"))
    made.check_alive()
    made.exchange.waits = 96.0
    made.check_alive()
    assert not cut
    now[0] = 101.5
    made.check_alive()
    assert cut == ["cut"]
    # Once.
    made.check_alive()
    assert cut == ["cut"]


@pytest.mark.parametrize("timeout", [0.5, 3.0, 10.0, 600.0])
def test_a_piece_on_the_slowest_link_is_not_stuck(timeout: float) -> None:
    assert patience.stuck(timeout) >= patience.PIECE / patience.SLOWEST_LINK + patience.REQUEST_WAITS
