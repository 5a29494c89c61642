"""A policy's guarantee as terms, and the checks that compare a log with them."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pslab.check.clocks import Clocks
from pslab.check.deadlines import Deadlines, Limits, Waste
from pslab.check.log_check import LogCheck
from pslab.runs.fold import COMMITTED, OPEN, LogState
from pslab.runs.log import Line
from psserver.decisions import entries as e


def constant(staleness: int) -> float:
    """Return 1 for every staleness."""
    return 1.0


@dataclass(frozen=True, slots=True)
class PolicyStart:
    """Where a policy begins to decide: at the start, or when it takes over from another one.

    `former`: tickets from before, whose staleness it did not bound. `workers`: those that take part. `set_scale`: the
    factor of the newest rate that a worker has set. `changed`: the factor of the rate that changes of the policy have
    set. `clocks`: as the policy before it bounded them; None: it did not, and they start anew. `waste`: what policies
    before it have cancelled.
    """

    former: frozenset[int] = frozenset()
    workers: tuple[str, ...] = ()
    set_scale: float = 1.0
    changed: float = 1.0
    clocks: Clocks | None = None
    waste: Waste = field(default_factory=Waste)


@dataclass(frozen=True, slots=True)
class Terms:
    """A policy's guarantee.

    `size`: the number of contributions of an update, or None: one per participant, all but `backup` of them. `grows`:
    an update may have more. `fewest`: the least number; fewer are dropped as "too few".
    `distinct`: the contributions of an update are of different workers, which then wait for it.
    `bound`: the largest staleness that is applied, or None. `drops`: staler contributions are dropped as "stale".
    `samples`: if above 0, a contribution counts by its samples, up to this number; without samples it is dropped.
    `weight`, `lr_scale`: functions of staleness. `norm`: how factors are scaled: "mean", "sum", or "listed", where an
    aggregator scales and nothing is folded.
    `compensation`: of contributions with a staleness above `compensated_beyond`.
    `cancels`: an update cancels the open tickets that are at least this number of versions old. None: no ticket.
    `lead`: how many clocks a worker that is granted a ticket may be ahead of the slowest.
    `ahead`: a worker may be granted its next ticket before it commits the current one.
    `every`: with a size of None, an update has a contribution of every participant but `backup`.
    `deadline`: limits of updates that are made by a deadline; None: timers never fire.
    `compensator`, `aggregator`, `numbers`: what the shards use. `undivided`: the job has one server.
    """

    size: int | None = 1
    grows: bool = False
    backup: int = 0
    fewest: int = 1
    distinct: bool = False
    bound: int | None = None
    drops: bool = True
    weight: Callable[[int], float] = constant
    lr_scale: Callable[[int], float] = constant
    norm: str = "mean"
    samples: int = 0
    compensation: float = 0.0
    compensated_beyond: int = 0
    cancels: int | None = None
    lead: float = math.inf
    ahead: bool = True
    compensator: str | None = None
    aggregator: str = "mean"
    numbers: Mapping[str, float] = field(default_factory=dict)
    undivided: bool = False
    every: bool = True
    deadline: Limits | None = None

    def checks(self, start: PolicyStart) -> list[LogCheck]:
        """Return the checks that these terms need from there on."""
        weighing = Weighing(self, start.former, start.set_scale, start.changed)
        found: list[LogCheck] = [Sizes(self), weighing, Cancelling(self)]
        if self.size is None and self.every and self.deadline is None:
            found.append(Barrier(self.backup))
        found.append(Deadlines(self.deadline, self.size, start.waste))
        if self.norm == "listed":
            found.append(Listing(self.fewest))
        if self.distinct:
            found.append(WaitsCheck())
        if not self.ahead:
            found.append(NoneAhead())
        if self.lead < math.inf:
            found.append(Lead(self.lead, start.clocks or Clocks(start.workers)))
        return found


@dataclass
class Sizes(LogCheck):
    """An update has the number of contributions that the policy takes."""

    terms: Terms

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        if not isinstance(entry.fact, e.Apply):
            return
        update, terms = entry.fact, self.terms
        workers = [part.worker for part in update.parts]
        if terms.distinct:
            for worker in sorted({w for w in workers if workers.count(w) > 1}):
                yield f"version {update.version} applies {workers.count(worker)} contributions of {worker}"
        if len(workers) < terms.fewest:
            yield f"version {update.version} has {len(workers)} parts; this policy needs {terms.fewest}"
        if terms.size is None:
            return
        # Fewer are right only if no other worker could add one.
        there = set(workers) if terms.distinct else set()
        above = len(workers) > terms.size and not terms.grows
        if not above and terms.deadline is not None:
            return  # `Deadlines` has the rule
        short = len(workers) < terms.size
        if above or (short and any(member.worker not in there for member in state.playing())):
            yield f"version {update.version} has {len(workers)} parts, the policy takes {terms.size}"


# Why contributions are dropped, by a policy or whatever it is.
REASONS = ("stale", "too few", "no samples", "stopped", e.REPLACED)


@dataclass
class Weighing(LogCheck):
    """Contributions have the staleness, weight and compensation of the policy, and updates have its scales."""

    terms: Terms
    former: frozenset[int]
    # The factor of the newest rate that a worker has set.
    set_scale: float
    changed: float = 1.0

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Rate(_, _, scale):
                self.set_scale = scale
            case e.Apply() as update:
                counts = self._counts(update, state)
                if not any(counts):
                    yield f"version {update.version} is made of contributions without samples"
                    return
                yield from self._scales(update, counts)
                unit = next(count for count in counts if count)
                for part, count in zip(update.parts, counts, strict=True):
                    yield from self._part(update, part, count / unit)
            case e.Drop(worker, ticket, staleness, "stale") if reason := self._undroppable(ticket, staleness):
                yield f"ticket {ticket} of {worker} is dropped as stale at staleness {staleness}: {reason}"

            case e.Drop(worker, ticket, _, "no samples"):
                committed = state.tickets.get(ticket)
                if not self.terms.samples or (committed is not None and committed.samples):
                    yield (
                        f"ticket {ticket} of {worker} is dropped for want of samples, but it has some, or the policy "
                        "does not count them"
                    )
            case e.Drop(worker, ticket, _, reason) if reason not in REASONS or self._too_few(reason):
                yield f"ticket {ticket} of {worker} is dropped: {reason}; this policy drops nothing for that"

    def _too_few(self, reason: str) -> bool:
        return reason == "too few" and self.terms.fewest == 1

    def _undroppable(self, ticket: int, staleness: int) -> str:
        bound = self.terms.bound
        # A barrier has none of its own that are stale, but drops those of the policy before it.
        if bound is None or not (self.terms.drops or ticket in self.former):
            return "this policy drops nothing"
        return f"the policy's bound is {bound}" if staleness <= bound else ""

    def _counts(self, update: e.Apply, state: LogState) -> list[int]:
        """Return how much each part counts: one, or the samples of its commit."""
        if not self.terms.samples:
            return [1] * len(update.parts)
        tickets = (state.tickets.get(part.ticket) for part in update.parts)
        return [0 if ticket is None else min(ticket.samples, self.terms.samples) for ticket in tickets]

    def _part(self, update: e.Apply, part: e.Part, count: float) -> Iterator[str]:
        terms, which = self.terms, f"ticket {part.ticket} with staleness {part.staleness}"
        if terms.bound is not None and part.staleness > terms.bound and part.ticket not in self.former:
            yield f"version {update.version} applies {which}, the policy's bound is {terms.bound}"
        weight = terms.weight(part.staleness) * count
        if not math.isclose(part.factor, weight, rel_tol=1e-12):
            yield f"{which} has factor {part.factor}, the policy gives {weight}"
        compensation = terms.compensation if part.staleness > terms.compensated_beyond else 0.0
        if part.compensation != compensation:
            yield f"{which} has compensation {part.compensation}, the policy gives {compensation}"

    def _scales(self, update: e.Apply, counts: list[int]) -> Iterator[str]:
        unit = next(count for count in counts if count)
        scale = unit / sum(counts) if self.terms.norm == "mean" else 1.0
        if not math.isclose(update.scale, scale, rel_tol=1e-12):
            if self.terms.norm == "listed":
                needs = "an aggregator has scaled it already, so it needs 1"
            else:
                needs = f"a {self.terms.norm} of {len(update.parts)} needs {scale}"
            yield f"version {update.version} has scale {update.scale}; {needs}"
        factor = self.set_scale * self.changed
        rate = self.terms.lr_scale(max(part.staleness for part in update.parts)) * factor
        if not math.isclose(update.lr_scale, rate, rel_tol=1e-12):
            and_set = f", with the rate that was set (factor {factor})" if factor != 1 else ""
            yield f"version {update.version} has lr_scale {update.lr_scale}, the policy gives {rate}{and_set}"


class Barrier(LogCheck):
    """An update has a contribution of each participant, all but `backup` of them."""

    def __init__(self, backup: int) -> None:
        self._backup = backup
        # The participants when the round began: one that comes later need not be in its update.
        self._roster: set[str] = set()
        self._dropped: set[str] = set()

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Drop(worker):
                self._dropped.add(worker)
            case e.Apply() as update:
                yield from self._missing(update, state)
                self._roster = {member.worker for member in state.playing()}
                self._dropped.clear()

    def _missing(self, update: e.Apply, state: LogState) -> Iterator[str]:
        present = ({member.worker for member in state.playing()} & self._roster) - self._dropped
        missing = sorted(present - {part.worker for part in update.parts})
        if len(missing) > self._backup:
            but = f" (backup {self._backup} allows {self._backup})" if self._backup else ""
            yield f"version {update.version} is made without {', '.join(missing)}{but}"
        if self._backup:
            return
        used = {part.ticket for part in update.parts}
        for ticket in state.reading():
            if ticket.state == OPEN and ticket.number not in used:
                yield f"version {update.version} leaves out ticket {ticket.number}, which {ticket.worker} works on"


@dataclass
class Listing(LogCheck):
    """All contributions of an update are aggregated at once, and not dropped while there are enough."""

    fewest: int

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Fold(ticket):
                yield f"ticket {ticket} is summed before its update; this policy needs all contributions at once"
            case e.Drop(worker, ticket, _, "too few"):
                there = sum(held.state == COMMITTED for held in state.reading())
                if there >= self.fewest:
                    yield (
                        f"ticket {ticket} of {worker} is dropped among {there} contributions as too few; "
                        f"{self.fewest} are enough"
                    )


class WaitsCheck(LogCheck):
    """A worker that has contributed to the coming update waits for it."""

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        if not isinstance(entry.fact, e.Grant):
            return
        worker, ticket = entry.fact.worker, entry.fact.ticket
        for held in state.held_of[worker]:
            if held.state == COMMITTED and held.base is not None:
                yield (
                    f"{worker} is granted ticket {ticket} while its ticket {held.number} waits for an update"
                )


class NoneAhead(LogCheck):
    """No ticket is granted to a worker that holds one."""

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        if isinstance(entry.fact, e.Grant) and entry.fact.ahead:
            yield (
                f"{entry.fact.worker} is granted ticket {entry.fact.ticket} ahead, "
                "which this policy does not permit"
            )


class Lead(LogCheck):
    """A worker starts at most `slack` clocks ahead of the slowest worker that has data.

    `clocks`: of the policy before this one, if that bounded them, too.
    """

    def __init__(self, slack: float, clocks: Clocks) -> None:
        self._slack = slack
        self.clocks = clocks

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        clocks = self.clocks
        clocks.see(entry.fact)
        if isinstance(entry.fact, e.Grant) and clocks.lead(entry.fact.worker) > self._slack:
            worker, ticket = entry.fact.worker, entry.fact.ticket
            yield (
                f"{worker} is granted ticket {ticket} at clock {clocks.present[worker]}, {clocks.lead(worker)} ahead"
                f" of the slowest (clock {clocks.slowest}); slack is {self._slack}"
            )


class Cancelling(LogCheck):
    """An update cancels the open tickets that are as old as the policy says, and nothing else."""

    def __init__(self, terms: Terms) -> None:
        self._age = terms.cancels
        # An update was made, and the cancels after it are not over yet.
        self._updated = False

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        if self._updated and not isinstance(entry.fact, e.Cancel):
            self._updated = False
            yield from self._spared(state)
        match entry.fact:
            case e.Apply():
                self._updated = self._age is not None
            case e.Cancel(worker, ticket, reason) if reason.startswith("version "):
                yield from self._cancelled(worker, ticket, state)

    def _spared(self, state: LogState) -> Iterator[str]:
        """Yield a sentence for each open ticket that the last update should have cancelled."""
        assert self._age is not None
        for ticket in state.reading():
            if ticket.state == OPEN and state.age(ticket) >= self._age:
                yield (
                    f"ticket {ticket.number} of {ticket.worker} goes on {state.age(ticket)} versions after "
                    f"its base; the policy cancels at {self._age}"
                )

    def _cancelled(self, worker: str, number: int, state: LogState) -> Iterator[str]:
        ticket = state.tickets.get(number)
        if self._age is None:
            yield f"ticket {number} of {worker} is cancelled for an update: this policy cancels nothing"
        elif ticket is not None and state.age(ticket) < self._age:
            yield (
                f"ticket {number} of {worker} is cancelled {state.age(ticket)} versions after its base; "
                f"the policy cancels at {self._age}"
            )


# Checks of what a policy decides alone, which hold as soon as it has taken over.
AT_ONCE = (Weighing, Cancelling, Lead)
