"""What a failed call says: the reason, without the layers that gRPC wraps it in."""

import socket

import grpc
import pytest

from pswire.transport.channels import CHANNEL_OPTIONS
from pswire.transport.connecting import stub_of
from pswire.transport.failures import LONGEST, reason
from pswire.v1 import coordinator_pb2 as pb


class Failure(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str | None) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._details


AWAY = grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("code", "details", "words"),
    [
        (AWAY, "Socket closed", "Socket closed"),
        (AWAY, "server 1 is shutting down", "server 1 is shutting down"),
        (AWAY, "Cancelling all calls", "it shut down"),
        (grpc.StatusCode.INTERNAL, "Internal error from Core", "the connection broke"),
        (grpc.StatusCode.INTERNAL, "the weights are not finite", "the weights are not finite"),
        (
            AWAY,
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote "
            "host: Connection refused",
            "Connection refused",
        ),
        (
            AWAY,
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv6:%5B::1%5D:1: Failed to connect to "
            "remote host: Timeout occurred: FD Shutdown",
            "Timeout occurred: FD Shutdown",
        ),
        (
            AWAY,
            "errors resolving nohost:7070: [field:hostname lookup error:address lookup failed for nohost:7070: Domain "
            "name not found]",
            "Domain name not found",
        ),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", "no answer in time"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "it waited 30 s", "it waited 30 s"),
        (AWAY, "", "UNAVAILABLE"),
        (AWAY, None, "UNAVAILABLE"),
        (AWAY, "two\nlines", "two lines"),
    ],
)
def test_the_useful_part(code: grpc.StatusCode, details: str | None, words: str) -> None:
    assert reason(Failure(code, details)) == words


def test_what_is_still_too_long_is_cut() -> None:
    said = reason(Failure(AWAY, "x" * 1000))
    assert len(said) == LONGEST and said.endswith("x ...")


def test_a_real_refusal_is_two_words() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # taken, but nobody listens
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with grpc.insecure_channel(address, CHANNEL_OPTIONS(10.0)) as channel:
            with pytest.raises(grpc.RpcError) as failed:
                stub_of(channel).Status(pb.StatusRequest(), timeout=20)
    assert reason(failed.value) == "Connection refused"
