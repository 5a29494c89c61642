"""A session without servers, for the worker's loop: it grants, cancels and refuses as a test has planned."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pswire.model.rows import NO_ROWS, KeysByName
from psworker.control.joining import JobInfo
from psworker.engine import Disposition, Grant, Stop
from psworker.errors import Voided
from psworker.local import LocalWork, build


@dataclass
class Said:
    """A commit: its last batch, samples, whether it asked for the next ticket, and the payload."""

    batch: int
    samples: int
    ready: bool
    payload: list[float]
    learning_rate: float | None = None


@dataclass
class FakeSession:
    """One server, two weights that stay 1 and 2.

    `mishaps[ticket]` is raised by its `contribute`, `before_grant[ticket]` called before it is granted.
    """

    rule: str
    knobs: dict[str, float]
    next_batch: int = 0
    mishaps: dict[int, Exception] = field(default_factory=dict)
    before_grant: dict[int, Callable[["FakeSession"], None]] = field(default_factory=dict)
    membership: int = 0
    stop: Stop | None = None
    said: list[Said] = field(default_factory=list)
    abandoned: list[tuple[int, str]] = field(default_factory=list)
    voided: set[int] = field(default_factory=set)
    tickets: int = 0
    held: int | None = None
    asked: bool = False
    asks: int = 0
    ended_for: str = ""
    work: None = None

    def goes_back(self) -> None:
        pass

    def local_work(self) -> LocalWork:
        return LocalWork(build(self.rule, self.knobs, [2]), self.membership)

    def ready(self) -> Grant | None:
        assert self.held is None, "ready while a ticket is open"
        if self.stop is not None:
            return None
        self.asks += not self.asked
        self.asked = False
        self.before_grant.pop(self.tickets, lambda session: None)(self)
        self.held, self.tickets = self.tickets, self.tickets + 1
        return Grant(self.held, 0, 0)

    @property
    def info(self) -> JobInfo:
        facts = {"learning_rate": None, "incarnation": 0, "chief": "", "phases_over": 0, "phase_batch": 0}
        return JobInfo(
            "job", "w0", 0, 1, 0, self.next_batch, local_rule=self.rule, membership=self.membership, **facts
        )

    @contextmanager
    def view_flat(self, grant: Grant, *, narrow: bool = False) -> Iterator[list[Any]]:
        yield self.pull_flat(grant)

    def prefetch(self, grant: Grant, rows: KeysByName = NO_ROWS) -> None:
        assert self.held == grant.ticket, "the next ticket is asked for while this one is worked on"

    prefetches = False

    def pull_flat(self, grant: Grant) -> list[Any]:
        return [np.array([1, 2], np.float32)]

    def cancelled(self, grant: Grant) -> bool:
        return grant.ticket in self.voided

    def contribute(self, grant: Grant, flats: list[Any], **said: Any) -> None:
        if grant.ticket in self.voided:
            raise Voided("cancelled")
        if grant.ticket in self.mishaps:
            raise self.mishaps.pop(grant.ticket)
        self.held, self.asked = None, said["ready"]
        self.said.append(
            Said(said["batch"], said["samples"], said["ready"], flats[0].tolist(), said["learning_rate"])
        )

    def abandon(self, grant: Grant, reason: str) -> None:
        assert self.held == grant.ticket
        self.held, self.asked = None, False
        self.abandoned.append((grant.ticket, reason))

    def dispositions(self, grant: Grant | None = None) -> list[Disposition]:
        return []

    def done(self, ends: str = "") -> Stop:
        self.ended_for = ends
        assert self.held is None and not self.asked, "done with a ticket open or asked for"
        return Stop("all workers are done", 0, True, 0)
