"""What a turn keeps and sends, on links of the test's own."""

import threading
from dataclasses import replace
from typing import Any

from pswire.v1 import coordinator_pb2 as pb
from psworker.control.joining import JoinedMember
from psworker.control.stream import SessionStream
from psworker.engine import ClientEngine, Disposition, Grant
from psworker.turn import Turns


def joined(incarnation: int = 0, **more: Any) -> pb.JoinReply:
    return pb.JoinReply(job="job", worker="w0", worker_count=1, incarnation=incarnation, **more)


class Recording:
    """A link that keeps the rates that contributions set."""

    def __init__(self) -> None:
        self.info = JoinedMember(joined(learning_rate=0.1), "session", numbered=True).info
        self.rates: list[float | None] = []

    def ready(self) -> Grant:
        return Grant(1, 0, 0)

    def contribute(self, *_: object, learning_rate: float | None = None, **__: object) -> None:
        self.rates.append(learning_rate)
        if learning_rate is not None:
            self.info = replace(self.info, learning_rate=learning_rate)

    def dispositions(self) -> list[Disposition]:
        return []

    def rejoin(self, learning_rate: float) -> None:
        self.info = replace(self.info, membership=self.info.membership + 1, learning_rate=learning_rate)


def sends(turns: Turns, rate: float) -> None:
    turn = turns.next()
    assert turn is not None and turn.send([], samples=1, rate=rate)


def test_a_rate_is_sent_when_it_changes_and_again_when_servers_that_went_back_lost_it() -> None:
    link: Any = Recording()
    turns = Turns(link, rate=0.1)
    for rate in (0.1, 0.05, 0.05):
        sends(turns, rate)
    link.rejoin(0.05)
    sends(turns, 0.05)
    link.rejoin(0.1)
    for _ in range(2):
        sends(turns, 0.05)
    assert link.rates == [None, 0.05, None, None, 0.05, None]


def test_a_rate_that_the_loop_never_set_is_not_sent_whatever_the_job_has() -> None:
    link: Any = Recording()
    turns = Turns(link, rate=0.1)
    link.rejoin(0.02)
    # As a variable of a framework has it.
    sends(turns, 0.1)
    assert link.rates == [None]


def test_a_loop_that_goes_back_wakes_when_it_can_know_the_batch() -> None:
    stream: Any = SessionStream.__new__(SessionStream)
    stream._lock = threading.RLock()
    stream._engine = ClientEngine()
    stream.joined = JoinedMember(joined(next_batch=0), "session", numbered=True)
    stream.joined.goes_back = True
    stream._registration = type("Registration", (), {"join": lambda self, used: joined(1, next_batch=7)})()
    stream._admit = lambda reply: None
    known = []
    stream._notify = lambda: known.append((stream.joined.info.next_batch, stream.joined.info.membership))
    stream._rejoin()
    assert known == [(7, 1)]
