"""Insisting on a server that does not answer: for how long, and when nobody needs the answer any more."""

import threading

import grpc
import pytest

from pswire.addresses import Address
from psworker.control.backoff import Backoff, insist
from psworker.errors import Refused, Unreachable
from tests.pswire.test_failures import Failure
from tests.sentences import Recorder

HERE = Address("127.0.0.1", 7070)


class Absent:
    """A server that does not answer."""

    def __init__(self, failure: grpc.RpcError) -> None:
        self.failure = failure
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        raise self.failure


class Watched(threading.Event):
    """`waiting` is set when somebody is about to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waiting.set()
        return super().wait(timeout)


def gone() -> Absent:
    return Absent(Failure(grpc.StatusCode.UNAVAILABLE, "Socket closed"))


def test_a_waiting_caller_is_woken_when_the_answer_is_not_needed_any_more(sentences: Recorder) -> None:
    pointless = Watched()
    found: list[BaseException] = []

    def call() -> None:
        try:
            insist(gone(), Backoff(1, HERE, 7200.0, pointless, _pause=3600.0))
        except Unreachable as error:
            found.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert pointless.waiting.wait(60)
    pointless.set()
    caller.join(60)
    assert not caller.is_alive()
    sentences.check(str(found[0]))


def test_what_is_not_needed_is_tried_once() -> None:
    server, pointless = gone(), threading.Event()
    pointless.set()
    with pytest.raises(Unreachable):
        insist(server, Backoff(0, HERE, 3600.0, pointless))
    assert server.calls == 1


def test_patience_ends(sentences: Recorder) -> None:
    with pytest.raises(Unreachable) as refused:
        insist(gone(), Backoff(0, HERE, 0.0, threading.Event()))
    sentences.check(refused)


def test_a_refusal_is_final_at_once(sentences: Recorder) -> None:
    server = Absent(Failure(grpc.StatusCode.FAILED_PRECONDITION, "another job"))
    with pytest.raises(Refused) as refused:
        insist(server, Backoff(0, HERE, 3600.0, threading.Event()))
    sentences.check(refused)
    assert server.calls == 1


class Hasty(threading.Event):
    """Nobody waits."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def test_pauses_double_up_to_the_longest() -> None:
    """A fifth more or less; whoever is back within a second is found a second later at most."""
    waited: list[float] = []

    class Noting(Hasty):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return self.is_set()

    tries = iter([*[True] * 9, False])

    def call() -> None:
        if next(tries):
            raise Failure(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    insist(call, Backoff(0, HERE, 3600.0, Noting()))
    for pause, usual in zip(waited, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0], strict=True):
        assert 0.79 * usual <= pause <= 1.21 * usual


def test_a_silence_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not with every try; and again when the server has answered in between."""
    caplog.set_level("INFO", "ps-worker")
    tries = iter([*[True] * 8, False, True, False])

    def call() -> None:
        if next(tries):
            raise Failure(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    backoff = Backoff(0, HERE, 3600.0, Hasty())
    insist(call, backoff)
    said = "server 0 at 127.0.0.1:7070 does not answer (Socket closed); trying again in 0.1 s, and for 3600 s in all"
    assert [record.getMessage() for record in caplog.records] == [said]
    backoff.reset()
    insist(call, backoff)
    assert [record.getMessage() for record in caplog.records] == [said] * 2


def test_calls_of_one_session_to_one_server_say_its_silence_once(caplog: pytest.LogCaptureFixture) -> None:
    """Its stream and its payloads fail together, and either may be answered first. Each server has a line."""
    caplog.set_level("INFO", "ps-worker")
    silent: dict[str, Backoff] = {}

    def backoff(server: int) -> Backoff:
        return Backoff(server, HERE, 3600.0, Hasty(), silent=silent)

    def fails(waits: Backoff) -> None:
        waits.wait(Failure(grpc.StatusCode.UNAVAILABLE, "Socket closed"))

    stream, pull = backoff(0), backoff(0)
    for each in (stream, pull, backoff(1), backoff(0)):
        fails(each)
    assert [record.getMessage()[:8] for record in caplog.records] == ["server 0", "server 1"]
    insist(lambda: None, pull)
    fails(backoff(0))
    stream.reset()
    fails(backoff(0))
    assert len(caplog.records) == 4


def test_a_server_that_says_when_to_come_again_is_not_said_to_be_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "ps-worker")
    tries = iter([True, False])

    def call() -> None:
        if next(tries):
            raise Failure(
                grpc.StatusCode.UNAVAILABLE, "job 1 has ended, and another one begins: join again in a moment"
            )

    insist(call, Backoff(0, HERE, 3600.0, Hasty()))
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("server 0 at 127.0.0.1:7070 asks to wait: job 1 has ended")
