"""Checks of the workers: who takes part, which times they report, which learning rates they set."""

import math
from collections.abc import Iterator

from pslab.check.log_check import LogCheck
from pslab.runs.fold import OPEN, LoggedTicket, LogState
from pslab.runs.log import Line
from psserver.decisions import entries as e

# Local rules under which a contribution depends on the worker's earlier ones, which no server has.
REMEMBERING = frozenset({"dana-slim", "elastic", "local-adamw", "streaming-adamw"})


class Members(LogCheck):
    """Only members that are not done get tickets and commit.

    A worker that returns is a new incarnation, and its join names the memory that is lost. A payload is encoded with
    the residual of the worker's commit before, or, if that one was dropped, of the commit before that.
    """

    name = "members"

    def __init__(self) -> None:
        # Worker -> the last ticket that it committed, the ticket whose residual encoded it, and whether it was dropped.
        self._last: dict[str, tuple[int, int | None, bool]] = {}
        # Workers encode with residuals.
        self._coded = False

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Join():
                self._last.pop(entry.fact.worker, None)
                yield from self._join(entry.fact, state)
            case e.Grant(worker, ticket) | e.Initialise(worker, ticket):
                yield from _absent(worker, f"is granted ticket {ticket}", state)
                if (member := state.members.get(worker)) and member.done and not member.gone:
                    yield f"{worker} is granted ticket {ticket} after it was done"
            case e.Commit(worker, ticket):
                yield from _absent(worker, f"commits ticket {ticket}", state)
                yield from self._residual(entry.fact)
            case e.Drop(worker, ticket) if (last := self._last.get(worker)) and last[0] == ticket:
                self._last[worker] = (ticket, last[1], True)
            case e.Done(worker) | e.Lost(worker) | e.Back(worker):
                yield from _absent(worker, f"has an entry {entry.kind}", state)
            case e.Resume(worker):
                yield from _absent(worker, "takes part again", state)
                if (member := state.members.get(worker)) and not member.done:
                    yield f"{worker} takes part again, and was not done"
            case e.Leave(worker):
                yield from _absent(worker, "leaves", state)
                for held in state.open_of(worker):
                    if held.base is not None:
                        yield f"{worker} leaves while ticket {held.number} is open, not cancelled before"

    def _residual(self, commit: e.Commit) -> Iterator[str]:
        worker, residual = commit.worker, commit.residual
        self._coded = self._coded or residual is not None
        ticket, before, dropped = self._last.get(worker, (None, None, False))
        if self._coded and residual != ticket and not (dropped and residual == before):
            yield (
                f"ticket {commit.ticket} is encoded with the residual of ticket {residual}, expected that of {ticket}, "
                f"the last that {worker} committed"
            )
        self._last[worker] = (commit.ticket, residual, False)

    def _join(self, fact: e.Join, state: LogState) -> Iterator[str]:
        before = state.members.get(fact.worker)
        if before is not None and not before.gone:
            yield f"{fact.worker} joins, but its incarnation {before.incarnation} has not left"
        if before is not None and fact.incarnation <= before.incarnation:
            yield (
                f"{fact.worker} joins as incarnation {fact.incarnation}, which should be above"
                f" its former one, {before.incarnation}"
            )
        for member in state.members.values():
            if not member.gone and member.worker != fact.worker and member.rank == fact.rank:
                yield f"{fact.worker} joins with rank {fact.rank}, which {member.worker} has"
        yield from _memory(fact, state)


def _memory(fact: e.Join, state: LogState) -> Iterator[str]:
    """Check that a join says what its new process has lost: the memory of the one before, if that had any."""
    committed = state.committed[fact.worker]
    rule = "" if state.job is None else str((state.job.local or {}).get("name"))
    if fact.forgets and not committed:
        yield f"{fact.worker} is said to forget what its {fact.forgets[0]} remembered, but had committed nothing"
    if committed and rule in REMEMBERING and "local rule" not in fact.forgets:
        yield (
            f"{fact.worker} joins after {committed} commits under the local rule {rule}, whose memory is lost, and the "
            "entry does not say so"
        )


def _absent(worker: str, what: str, state: LogState) -> Iterator[str]:
    member = state.members.get(worker)
    if member is None:
        yield f"{worker} {what}, but never joined"
    elif member.gone:
        yield f"{worker} {what}, but has left"


# Seconds. Five numbers in whole microseconds and a sum of them, each rounded by half a microsecond.
ROUNDING = 3e-6
# The monotonic clocks of two machines: each may be slewed by 500 parts per million while it is adjusted.
DRIFT = 1e-3


class WorkersTimes(LogCheck):
    """A worker's pull and compute times fit between grant and commit; with `before`, between its last grant and commit.

    A worker's intervals lie within the coordinator's: it receives a grant after the entry, and sends its commit before
    it. Only rounding and the rates of two clocks can make them longer; on a virtual clock only rounding. A worker
    reports all times or none.
    """

    name = "workers' times"

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        if isinstance(entry.fact, e.Commit):
            yield from _incomplete(entry.fact)
            ticket = state.held.get(entry.fact.ticket)
            if ticket is not None and ticket.state == OPEN and ticket.base is not None:
                yield from _fits(entry.fact, entry.t, ticket)


def _incomplete(commit: e.Commit) -> Iterator[str]:
    reported = {"pull": commit.pull, "compute": commit.compute, "before": commit.before}
    for name, seconds in reported.items():
        if seconds is not None and seconds < 0:
            yield f"commit of ticket {commit.ticket}: {name} is {seconds:g} s, expected 0 or more"
    if (commit.pull is None) != (commit.compute is None) or (
        commit.before is not None and commit.pull is None
    ):
        names = " and ".join(name for name, seconds in reported.items() if seconds is not None)
        yield f"commit of ticket {commit.ticket} reports {names}, but not the rest"


def _fits(commit: e.Commit, now: float, ticket: LoggedTicket) -> Iterator[str]:
    held = (commit.pull or 0.0) + (commit.compute or 0.0)
    before = commit.before or 0.0
    if held > _longest(now - ticket.granted):
        yield (
            f"{commit.worker} pulled and computed {held:.6f} s for ticket {commit.ticket}, but committed it "
            f"{now - ticket.granted:.6f} s after its grant"
        )
    elif ticket.previous is not None and held + before > _longest(now - ticket.previous):
        yield (
            f"{commit.worker} worked {held + before:.6f} s for ticket {commit.ticket}, {before:.6f} s of it before the "
            f"grant, but committed it {now - ticket.previous:.6f} s after the grant of its ticket before"
        )


def _longest(seconds: float) -> float:
    return seconds * (1 + DRIFT) + ROUNDING


class Rates(LogCheck):
    """A learning rate is set directly after a commit of the same worker, and its factor matches it.

    Under a policy that tolerates bad workers, no worker sets the rate.
    """

    name = "rates"

    def __init__(self) -> None:
        self._initial: object = None
        self._aggregator = "mean"
        self._committed: str | None = None

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        fact = entry.fact
        if isinstance(fact, e.Job):
            self._aggregator = str((fact.tensors or {}).get("aggregator", "mean"))
        elif isinstance(fact, e.Model):
            self._initial = fact.optimizer.get("learning_rate")
        elif isinstance(fact, e.Rate):
            yield from self._rate(fact)
        self._committed = fact.worker if isinstance(fact, e.Commit) else None

    def _rate(self, rate: e.Rate) -> Iterator[str]:
        if self._committed != rate.worker:
            yield f"{rate.worker} sets the learning rate without a commit right before"
        if self._aggregator != "mean":
            yield (
                f"{rate.worker} sets the learning rate to {rate.learning_rate:g}: under {self._aggregator}, "
                "which tolerates bad workers, no worker sets the rate for all"
            )
        initial = self._initial
        if isinstance(initial, bool) or not isinstance(initial, int | float) or not initial > 0:
            yield f"{rate.worker} sets the learning rate to {rate.learning_rate}, but the job's is {initial}"
        elif not rate.learning_rate >= 0 or not math.isclose(
            rate.scale, rate.learning_rate / initial, rel_tol=1e-12
        ):
            yield (
                f"learning rate {rate.learning_rate} has factor {rate.scale}, but {rate.learning_rate} / {initial} = "
                f"{rate.learning_rate / initial}"
            )
