"""One small machine that composes gate, trigger, staleness rule, weight and cancel.

Each policy of the shelf is a choice of these five (see `shelf`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from psserver.policies.decisions import Apply, Cancel, Decision, Drop, Fold, Grant, Part
from psserver.policies.events import Abandon, Commit, Done, Event, Join, Leave, Ready
from psserver.policies.gates import Gate, listed
from psserver.policies.policy import PolicyError, Waiting
from psserver.policies.staleness import Reject, StalenessRule
from psserver.policies.triggers import Trigger
from psserver.policies.view import Contribution, Member, Open, View


@dataclass(frozen=True, slots=True)
class Composition:
    """The five choices, and the order of summation that makes runs repeatable.

    `weight`: "mean" scales an update by 1/K for its K contributions, "sum" by 1.
    `cancel`: after an update, cancel the open tickets that started before it.
    `order`: "rank" sums a round's contributions by worker rank whatever order
    they come in, so that two runs agree to the bit; "commit" sums as they come.
    """

    gate: Gate
    trigger: Trigger
    staleness: StalenessRule
    weight: Literal["mean", "sum"] = "mean"
    cancel: bool = False
    order: Literal["rank", "commit"] = "commit"


class Machine:
    """A policy made of a `Composition`."""

    def __init__(self, name: str, knobs: Mapping[str, object], composition: Composition) -> None:
        self.name = name
        self.knobs = dict(knobs)
        self._rules = composition
        self._view = View()

    @property
    def keep_bases(self) -> bool:
        return self._rules.staleness.keep_bases

    def step(self, event: Event) -> list[Decision]:
        decisions: list[Decision] = []
        match event:
            case Join(worker, rank):
                self._join(worker, rank)
            case Leave(worker, _):
                self._forget(worker)
            case Done(worker):
                self._view.members[worker].done = True
                self._view.waiting.pop(worker, None)
            case Ready(worker, ticket):
                self._view.waiting[worker] = ticket
            case Abandon(_, ticket, _):
                self._view.open.pop(ticket, None)
            case Commit(worker, ticket):
                self._commit(worker, ticket, decisions)
        self._update(decisions)
        self._grant(decisions)
        return decisions

    def explain(self, worker: str) -> Waiting | None:
        if worker not in self._view.waiting:
            return None
        return self._hold(self._view.members[worker])

    # Events

    def _join(self, worker: str, rank: int) -> None:
        view = self._view
        view.members[worker] = Member(worker, rank, clock=view.slowest_clock())
        view.peak = max(view.peak, len(view.active()))

    def _forget(self, worker: str) -> None:
        view = self._view
        view.members.pop(worker, None)
        view.waiting.pop(worker, None)
        view.open = {t: o for t, o in view.open.items() if o.worker != worker}

    def _commit(self, worker: str, ticket: int, decisions: list[Decision]) -> None:
        view = self._view
        if ticket not in view.open:
            raise PolicyError(f"commit of ticket {ticket}, which {self.name} did not grant or has closed")
        base = view.open.pop(ticket).base
        member = view.members[worker]
        member.clock += 1
        verdict = self._rules.staleness.judge(view.version - base)
        if isinstance(verdict, Reject):
            decisions.append(Drop(ticket, verdict.reason))
            return
        view.buffer.append(Contribution(ticket, worker, member.rank, verdict.factor, verdict.compensation))
        if self._rules.order == "rank":
            # Folded ones keep their place: the log has already fixed it.
            view.buffer.sort(key=lambda c: (not c.folded, 0 if c.folded else c.rank))

    # Updates

    def _update(self, decisions: list[Decision]) -> None:
        view = self._view
        if not view.buffer:
            return
        if self._rules.trigger.fires(view) and not self._rules.staleness.blockers(view):
            self._apply(decisions)
        else:
            self._fold(decisions)

    def _apply(self, decisions: list[Decision]) -> None:
        view = self._view
        parts = tuple(Part(c.ticket, c.factor, c.compensation) for c in view.buffer)
        scale = 1.0 / len(parts) if self._rules.weight == "mean" else 1.0
        decisions.append(Apply(parts, scale))
        view.buffer = []
        view.version += 1
        if self._rules.cancel:
            for ticket in [t for t, o in view.open.items() if o.base < view.version]:
                decisions.append(Cancel(ticket, f"version {view.version} was made without it"))
                del view.open[ticket]

    def _fold(self, decisions: list[Decision]) -> None:
        """Have the shards sum what has its final place in the order of summation."""
        for contribution in self._view.buffer:
            if contribution.folded:
                continue
            if self._rules.order == "rank" and self._expects_lower(contribution.rank):
                return
            contribution.folded = True
            decisions.append(Fold(contribution.ticket, contribution.factor, contribution.compensation))

    def _expects_lower(self, rank: int) -> bool:
        contributed = self._view.contributors()
        return any(m.rank < rank and m.worker not in contributed for m in self._view.active())

    # Grants

    def _grant(self, decisions: list[Decision]) -> None:
        view = self._view
        by_rank = sorted(view.waiting, key=lambda worker: view.members[worker].rank)
        for worker in by_rank:
            member = view.members[worker]
            if self._hold(member) is not None:
                continue
            ticket = view.waiting.pop(worker)
            view.open[ticket] = Open(ticket, worker, view.version)
            decisions.append(Grant(worker, ticket, member.rank if self._rules.order == "rank" else None))

    def _hold(self, member: Member) -> Waiting | None:
        view, staleness = self._view, self._rules.staleness
        if staleness.delays_grants() and view.buffer and self._rules.trigger.fires(view):
            blockers = tuple(o.worker for o in staleness.blockers(view))
            if blockers:
                return Waiting(
                    f"version {view.version + 1}, held until {listed(blockers)} commits "
                    "what it started from an older version",
                    blockers,
                )
        return self._rules.gate.hold(view, member)
