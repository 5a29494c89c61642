"""A policy as one state machine over the parts of a `Composition`: gate, trigger, staleness rule and others.

Every built-in policy is a `Composition` (see `builtin`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from psserver.policies.composition import Composition
from psserver.policies.decisions import (
    Apply,
    Cancel,
    ClearTimer,
    Decision,
    Drop,
    Fold,
    Grant,
    Part,
    PolicyError,
    SetTimer,
)
from psserver.policies.events import (
    Abandon,
    Commit,
    Done,
    Event,
    Join,
    Leave,
    Ready,
    Timer,
    microseconds,
)
from psserver.policies.parts.gates import listed
from psserver.policies.parts.staleness_rules import DropVerdict
from psserver.policies.parts.times import Times
from psserver.policies.parts.view import Contribution, Participant, View
from psserver.policies.policy import Policy, Waiting
from psserver.records import StateError, from_plain, to_plain

# The tag of the timer of a deadline.
DEADLINE: Final = "deadline"
# A timer is set at least this far ahead, in microseconds.
LEAST_AHEAD: Final = 1000
# Reason of a drop: fewer contributions than the aggregator needs.
TOO_FEW = "too few"
# Reason of a drop: contributions count by their samples, and these have none.
NO_SAMPLES = "no samples"


@dataclass(frozen=True, slots=True)
class PolicyState:
    """The saved form of a `ComposedPolicy`."""

    view: View
    gate: dict[str, object]
    # The deadline of the coming update, the one that its timer is set for, and whether it has passed.
    deadline: int | None
    timer: int | None
    passed: bool


class ComposedPolicy(Policy):
    """A policy made of a `Composition`. `name` and `knobs` are those of `Policy`; `build` sets them if omitted."""

    def __init__(
        self, composition: Composition, *, name: str = "", knobs: Mapping[str, object] | None = None
    ) -> None:
        if name:
            self.name = name
        if knobs is not None:
            self.knobs = dict(knobs)
        self.tensors, self.local_rule = composition.tensors, composition.local
        self.ahead = composition.gate.ahead and composition.staleness.ahead
        self.by_samples = bool(composition.most_samples)
        self._rules = composition
        # Times are kept only for parts that need them.
        self._deadline = composition.deadline
        self._timed = composition.deadline is not None or getattr(composition.trigger, "timed", False)
        self._view = View(times=Times() if self._timed else None)
        # The deadline of the coming update, and the one that the timer is set for, in microseconds; None: none.
        self._at: int | None = None
        self._set: int | None = None
        # The deadline has passed. The timer says so, which pauses of the job postpone.
        self._passed = False
        # Shards admit payloads of a running sum by turn. A list has no turns: they admit all of its payloads.
        self.by_rank = composition.order == "rank"
        self._turns = self.by_rank and not composition.tensors.lists
        self._lists, self._fewest = composition.tensors.lists, composition.tensors.fewest
        # The gate's stamp when all waiting workers were last examined; None: examine them again.
        self._examined_at: tuple[object] | None = None

    @property
    def composed(self) -> bool:
        """Whether __init__ ran. A subclass may have forgotten to call it."""
        return hasattr(self, "_rules")

    def step(self, event: Event) -> list[Decision]:
        decisions: list[Decision] = []
        view = self._view
        if view.times is not None:
            view.times.now = microseconds(event.t)
        asking: str | None = None
        # The two most frequent events come first and without sub-patterns, which would cost time.
        match event:
            case Ready():
                asking = event.worker
                view.waiting[asking] = event.ticket
            case Commit():
                self._commit(event, decisions)
            case Join(worker, rank):
                view.join(worker, rank)
            case Leave(worker, _):
                view.forget(worker)
            case Done(worker):
                view.finish(worker)
            case Abandon(_, ticket, _):
                view.close(ticket)
            case Timer():
                self._expire()
        self._update(decisions)
        self._grant(asking, decisions)
        if self._deadline is not None:
            self._set_timer(decisions)
        return decisions

    def explain(self, worker: str) -> Waiting | None:
        if worker not in self._view.waiting:
            return None
        waiting = self._hold(self._view.members[worker])
        if waiting is not None and self._set is not None:
            return replace(waiting, timer=DEADLINE)
        return waiting

    def state(self) -> dict[str, object]:
        """Save the view and the gate's memory. All other parts are stateless."""
        view = self._view
        state = PolicyState(view, self._rules.gate.state(view), self._at, self._set, self._passed)
        plain: dict[str, object] = to_plain(state)
        return plain

    def restore(self, state: Mapping[str, object]) -> None:
        saved = from_plain(PolicyState, state, f"policy {self.name}")
        view = saved.view
        view.check()
        if (view.times is not None) is not self._timed:
            raise StateError(
                f"policy {self.name}: expected a state {'with' if self._timed else 'without'} times"
            )
        self._rules.gate.restore(view, saved.gate)
        # The next step examines all waiting workers; none may start now that might not have started before.
        self._view, self._examined_at = view, None
        self._at, self._set, self._passed = saved.deadline, saved.timer, saved.passed

    @property
    def rests(self) -> bool:
        return not self._view.buffer

    def check_succession(self, former: Policy) -> None:
        if not isinstance(former, ComposedPolicy):
            super().check_succession(former)
            return
        for what, has, wants in (
            ("other parts that see tensors", former.tensors, self.tensors),
            ("another local rule", former.local_rule, self.local_rule),
            ("another weight of a contribution", former.by_samples, self.by_samples),
        ):
            if has != wants:
                raise PolicyError(
                    f"policy {self.name} cannot take over from {former.name} while the job runs: "
                    f"it has {what}, and shards and workers have theirs from the start"
                )

    def succeed(self, former: Policy, t: float) -> None:
        """Take over from another composition, with its view of the job but without its gate's memory.

        Clocks go on where both gates bound them, and else start anew from the same number. Times go on where both need
        them. Where the former kept none, tickets that are open count from now on.
        """
        self.check_succession(former)
        assert isinstance(former, ComposedPolicy)
        fresh, view = self._view.times, from_plain(View, to_plain(former._view), "view")
        # Only a change that replaces another one leaves some, which were dropped.
        view.discard()
        if view.times is not None:
            view.times.discarded()
        if not (former._rules.gate.bounds_clocks and self._rules.gate.bounds_clocks):
            view.restart_clocks()
        if fresh is None:
            view.times = None
            view.open = {number: replace(opened, at=0) for number, opened in view.open.items()}
        elif view.times is None:
            fresh.now = fresh.began = microseconds(t)
            view.times = fresh
            view.open = {number: replace(opened, at=fresh.now) for number, opened in view.open.items()}
        else:
            view.times.now = microseconds(t)
        self._view, self._examined_at = view, None

    def go_on(self, state: Mapping[str, object], version: int) -> None:
        self.restore(state)
        view = self._view
        for worker in tuple(view.members):
            view.forget(worker)
        view.discard()
        view.version = version
        if view.times is not None:
            view.times.begin_anew()
        self._at, self._set, self._passed = None, None, False

    # Events

    def _commit(self, commit: Commit, decisions: list[Decision]) -> None:
        view, rules, ticket = self._view, self._rules, commit.ticket
        opened = view.close(ticket)
        if opened is None:
            raise PolicyError(f"commit of ticket {ticket}, which {self.name} did not grant or has closed")
        if view.times is not None:
            view.times.committed(opened.worker, opened.at)
        member = view.members[commit.worker]
        view.advance(member)
        rules.gate.completed(view, member, commit.t)
        staleness = view.version - opened.base
        verdict = rules.staleness.judge(staleness)
        if isinstance(verdict, DropVerdict):
            decisions.append(Drop(ticket, verdict.reason))
            return
        factor = verdict.factor if rules.weight is None else verdict.factor * rules.weight(staleness)
        if rules.most_samples:
            factor *= min(commit.samples, rules.most_samples)
        contribution = Contribution(
            ticket, commit.worker, member.rank, staleness, factor, verdict.compensation
        )
        view.contribute(contribution, by_rank=self.by_rank)
        if view.times is not None and view.times.first is None:
            view.times.first = view.times.now

    # Updates

    def _update(self, decisions: list[Decision]) -> None:
        view = self._view
        if not view.buffer:
            return
        if (self._rules.trigger.fires(view) or self._overdue()) and not self._rules.staleness.blocked(view):
            if len(view.buffer) < self._fewest:
                self._give_up(TOO_FEW, decisions)
            elif not self._unit():
                self._give_up(NO_SAMPLES, decisions)
            else:
                self._apply(decisions)
        elif not self._lists:
            self._fold(decisions)

    def _unit(self) -> float:
        """Return the number by which the factors of the coming update are divided.

        With weights by samples it is the first factor other than 0. Contributions of equal size then have the factor 1,
        and their sum has the same bits as an unweighted one.
        """
        if not self._rules.most_samples:
            return 1.0
        return next((c.factor for c in self._view.buffer if c.factor), 0.0)

    def _give_up(self, reason: str, decisions: list[Decision]) -> None:
        """Drop the buffer: no more contributions can come, and these are too few for an update."""
        view = self._view
        decisions.extend(Drop(c.ticket, reason) for c in view.buffer)
        view.discard()
        self._at, self._passed = None, False
        if view.times is not None:
            view.times.discarded()
        # Workers that waited for this update now wait for the next one.
        self._examined_at = None

    def _apply(self, decisions: list[Decision]) -> None:
        view, rules = self._view, self._rules
        # A list first: it is quicker than a generator, and an update of async has one part.
        unit = self._unit()
        parts = tuple([Part(c.ticket, c.factor / unit, c.compensation) for c in view.buffer])
        scale = 1.0 / len(parts) if rules.norm == "mean" and not self._lists else 1.0
        if rules.most_samples:
            scale = unit / sum(c.factor for c in view.buffer)
        rate = 1.0 if rules.lr_scale is None else rules.lr_scale(max(c.staleness for c in view.buffer))
        decisions.append(Apply(parts, scale, rate))
        view.next_version()
        self._at, self._passed = None, False
        cancelled = 0
        for ticket in () if rules.cancel is None else rules.cancel.void(view):
            decisions.append(Cancel(ticket, f"version {view.version} was made without it"))
            opened = view.close(ticket)
            if opened is not None:
                cancelled += 1
                view.missed[opened.worker] = view.missed.get(opened.worker, 0) + 1
        if self._deadline is not None:
            self._deadline.settle(view, len(parts), cancelled)
        if view.times is not None:
            view.times.updated(cancelled)

    # Deadlines

    def _overdue(self) -> bool:
        """Whether the deadline of the coming update has passed and its limits permit the update."""
        deadline, view = self._deadline, self._view
        if deadline is None:
            return False
        if self._at is None:
            self._at = deadline.rule.at(view)
        return self._passed and deadline.permits(view, 0 if self._rules.cancel is None else len(view.open))

    def _expire(self) -> None:
        """Take the timer of the deadline. Tickets that were granted or committed since may have moved the deadline."""
        self._set = None
        if self._deadline is not None and self._view.buffer:
            self._at = self._deadline.rule.at(self._view)
            self._passed = self._at <= self._view.known_times.now

    def _set_timer(self, decisions: list[Decision]) -> None:
        """Set the timer for the deadline of the coming update, and clear it where there is none to come."""
        at = self._at if self._view.buffer and not self._passed else None
        if at == self._set:
            return
        if at is None:
            decisions.append(ClearTimer(DEADLINE))
        else:
            decisions.append(SetTimer(DEADLINE, max(at, self._view.known_times.now + LEAST_AHEAD)))
        self._set = at

    def _fold(self, decisions: list[Decision]) -> None:
        """Have the shards sum every contribution whose place in the order of summation is final."""
        view, by_rank, unit = self._view, self.by_rank, self._unit()
        # Without samples a contribution makes no update alone: fold it only beside one that has some.
        while unit and view.folded < len(view.buffer):
            contribution = view.buffer[view.folded]
            if by_rank and view.expects_below(contribution.rank):
                return
            view.folded += 1
            factor = contribution.factor / unit
            decisions.append(Fold(contribution.ticket, factor, contribution.compensation))

    # Grants

    def _grant(self, asking: str | None, decisions: list[Decision]) -> None:
        """Grant tickets by rank. All waiting workers are examined only after the gate's stamp has changed."""
        view = self._view
        if not view.waiting:
            return
        if self._update_waits():
            self._examined_at = None
            return
        gate = self._rules.gate
        stamp = (gate.stamp(view),)
        if stamp != self._examined_at:
            self._examined_at = stamp
            candidates = sorted(view.waiting, key=lambda worker: view.members[worker].rank)
        else:
            candidates = [asking] if asking in view.waiting else []
        for worker in candidates:
            member = view.members[worker]
            if gate.admits(view, member):
                ticket = view.grant(worker)
                decisions.append(Grant(worker, ticket, member.rank if self._turns else None))

    def _update_waits(self) -> bool:
        """Whether an update is held up and a worker that started now would delay it further."""
        view, staleness = self._view, self._rules.staleness
        return (
            bool(view.buffer)
            and staleness.delays_grants()
            and staleness.blocked(view)
            and self._rules.trigger.fires(view)
        )

    def _hold(self, member: Participant) -> Waiting | None:
        view, staleness = self._view, self._rules.staleness
        if self._update_waits():
            blockers = tuple(o.worker for o in staleness.blockers(view))
            return Waiting(
                f"version {view.version + 1}, held until {listed(blockers)} commits "
                "what it started from an older version",
                blockers,
            )
        return self._rules.gate.hold(view, member)
