"""The decisions of another policy on a recorded schedule.

The servers' own coordinator receives the schedule (the order in which computations finished) with the other policy.
What could not have happened under that policy is postponed: a computation that is not granted yet ends as soon as it
is, and so takes no time. Losses and weights are ignored, because the gradients would be different.

`ClientEngine` does not drive it: a recorded move may come before the other policy grants the ticket that it needs, and
is then held back, which no client does. And the schedule has no lost messages, which an engine is for.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pslab.replay import schedule as s
from pslab.replay.schedule import fold_of, job_of, model_of
from pslab.runs.fold import Fold
from psserver.coordinator import (
    Coordinator,
    Input,
    JobTerms,
    Joined,
    Output,
    Record,
    Send,
    declined,
    inputs,
)
from psserver.coordinator.terms import Proposal
from psserver.policies import Policy, PolicyError
from psserver.policies import build as build_policy
from pswire import protocol
from pswire.decisions import entries


@dataclass(frozen=True, slots=True)
class Alternative:
    """The recorded run, and the same schedule under another policy.

    `held`: the number of computations that were postponed until the other policy granted them; `never`: of those that
    it never granted. `steps`: the other policy's decision log. `failure`: why it ended the job early, or empty.
    """

    recorded: Fold
    other: Fold
    held: int
    never: int
    steps: list[Record]
    failure: str = ""


def what_if(steps: Sequence[Record], name: str, knobs: Mapping[str, object]) -> Alternative:
    """Feed the schedule of a decision log to policy `name`.

    Raises PolicyError if there is no such policy, and for a run that deals work units.
    """
    job = job_of(steps)
    if any(isinstance(step.entry, entries.Work) and step.entry.units for step in steps):
        raise PolicyError(
            "this run dealt its data as work units: under another policy other workers would have worked on them, "
            "which the log does not show; expected a run in which each worker has data of its own (ps-lab run --engine "
            "simulated --policy NAME plays the same experiment under another policy)"
        )
    policy = build_policy(name, knobs, job.workers, job.servers)
    counterfactual = Counterfactual(terms_of(job), proposal_of(steps), policy)
    for move in s.schedule(steps):
        counterfactual.receive(move)
    failure = counterfactual.end(steps[-1].t)
    return Alternative(
        recorded=fold_of(steps),
        other=fold_of(counterfactual.steps),
        held=counterfactual.held,
        never=counterfactual.never,
        steps=counterfactual.steps,
        failure=failure,
    )


def terms_of(job: entries.Job) -> JobTerms:
    """Return the terms of the job that a log describes, without its limits of time."""
    return JobTerms(job.job, job.servers, job.workers, job.seed, min_workers=job.min_workers or 0)


def proposal_of(steps: Sequence[Record]) -> Proposal:
    """Return what was proposed to the job of a log, as far as the log settles it."""
    model = model_of(steps)
    return Proposal(model.variables, dict(model.optimizer))


@dataclass
class Counterfactual:
    """A coordinator that receives moves. A move that is not possible yet waits, and so do the worker's later ones."""

    terms: JobTerms
    proposal: Proposal
    policy: Policy
    steps: list[Record] = field(default_factory=list)
    held: int = 0
    never: int = 0
    _incarnations: dict[str, int] = field(default_factory=dict)
    # Worker -> the tickets that it holds, oldest first. Some may be cancelled meanwhile.
    _tickets: dict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    # Worker -> the number of its requests that are not granted. A request ahead that is not granted is repeated after
    # the commit.
    _requested: Counter[str] = field(default_factory=Counter)
    _queues: dict[str, deque[s.Move]] = field(default_factory=lambda: defaultdict(deque))
    # Workers whose first waiting move may have become possible.
    _unblocked: deque[str] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(self.terms, self.policy)
        self._give(inputs.Opened(), 0.0)
        self._give(inputs.ModelProposed(self.proposal), 0.0)

    def receive(self, move: s.Move) -> None:
        """Make the next move of the schedule, and every move that becomes possible by it."""
        self._fire_timers(move.t)
        if isinstance(move, s.Arrive | s.Depart):
            self._move_in_or_out(move)
        else:
            queue = self._queues[move.worker]
            self.held += isinstance(move, s.Finish) and (bool(queue) or not self._can(move))
            queue.append(move)
            self._unblocked.append(move.worker)
        while self._unblocked:
            self._advance(self._unblocked.popleft(), move.t)

    def _fire_timers(self, t: float) -> None:
        """Let the policy's timers fire when they are due, up to second `t`, and make the moves that this permits."""
        while (due := self.coordinator.due) is not None and due <= t:
            self._give(inputs.Tick(), due)
            while self._unblocked:
                self._advance(self._unblocked.popleft(), due)

    def change(self, policy: Policy, change: entries.Policy, t: float) -> None:
        """Have another policy take over, as the log has it. Raises PolicyError if it cannot."""
        asked = inputs.ChangeAsked(policy.name, dict(policy.knobs), change.by, change.why, change.rate)
        refused = declined(self._give(asked, t))
        if refused is not None:
            raise PolicyError(refused.reason)
        while self._unblocked:
            self._advance(self._unblocked.popleft(), t)

    def end(self, t: float) -> str:
        """End the schedule. Return why the policy ended the job before that, or an empty string."""
        stopped = self.coordinator.state.stopped
        early = "" if stopped is None or stopped.cause == "done" else stopped.reason
        self.never += sum(isinstance(move, s.Finish) for queue in self._queues.values() for move in queue)
        self._give(inputs.Stopping("the schedule is over", True, "done"), t)
        return early

    def _move_in_or_out(self, move: s.Arrive | s.Depart) -> None:
        worker = move.worker
        self.never += sum(isinstance(waiting, s.Finish) for waiting in self._queues.pop(worker, ()))
        self._tickets.pop(worker, None)
        del self._requested[worker]
        if isinstance(move, s.Depart):
            incarnation = self._incarnations.pop(worker)
            self._give(inputs.Requested(worker, incarnation, protocol.Leave(move.reason)), move.t)
        elif self.coordinator.state.stopped is None:
            session = f"{worker}/{move.incarnation}"
            outputs = self.coordinator.take(inputs.JoinAsked(worker, session, move.rank), move.t)
            joined = next(each for each in outputs if isinstance(each, Joined))
            self._incarnations[worker] = joined.incarnation
            self._take(outputs)
            self._give(inputs.Connected(worker, joined.incarnation, session), move.t)

    def _can(self, move: s.Move) -> bool:
        """Return True if the worker holds the ticket that the move needs. Asking and being done need none."""
        return not isinstance(move, s.Finish | s.GiveUp | s.Initialised) or bool(self._tickets[move.worker])

    def _advance(self, worker: str, t: float) -> None:
        queue = self._queues[worker]
        while queue and self._can(queue[0]) and worker in self._incarnations:
            self._do(replace(queue.popleft(), t=t))

    def _do(self, move: s.Move) -> None:
        worker, now, coordinator = move.worker, move.t, self.coordinator
        incarnation = self._incarnations[worker]
        match move:
            case s.Ask():
                self._ask(move)
            case s.Done():
                self._give(inputs.Requested(worker, incarnation, protocol.Done()), now)
            case s.Initialised():
                commit = protocol.Commit(self._tickets[worker].popleft())
                self._give(inputs.Requested(worker, incarnation, commit), now)
            case s.Finish() | s.GiveUp():
                ticket = self._tickets[worker].popleft()
                if isinstance(move, s.GiveUp) or ticket not in coordinator.state.tickets.live:
                    reason = move.reason if isinstance(move, s.GiveUp) else "cancelled"
                    self._give(inputs.Requested(worker, incarnation, protocol.Abandon(ticket, reason)), now)
                else:
                    self._commit(move, incarnation, ticket)
                self._send_ready(worker, now)

    def _ask(self, move: s.Ask) -> None:
        if move.ahead or not self._tickets[move.worker]:
            self._requested[move.worker] += 1
            self._send_ready(move.worker, move.t)

    def _send_ready(self, worker: str, now: float) -> None:
        if self._requested[worker] > 0:
            held = self._tickets[worker]
            holding = held[-1] if held else 0
            self._give(inputs.Requested(worker, self._incarnations[worker], protocol.Ready(holding)), now)

    def _commit(self, move: s.Finish, incarnation: int, ticket: int) -> None:
        # Under a policy that tolerates bad workers, no worker sets the rate.
        rate = move.learning_rate if self.policy.tensors.aggregator == "mean" else None
        times = protocol.Times(*move.times)
        commit = protocol.Commit(ticket, move.batch, move.samples, move.loss, False, times, (), rate)
        self._give(inputs.Requested(move.worker, incarnation, commit, norm=move.norm), move.t)

    def _give(self, given: Input, now: float) -> list[Output]:
        outputs = self.coordinator.take(given, now)
        self._take(outputs)
        return outputs

    def _take(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Record):
                self.steps.append(Record(output.index, round(output.t, 6), output.entry))
            elif isinstance(output, Send) and isinstance(output.notice, protocol.Grant):
                tickets = self._tickets[output.worker]
                # A notice that is sent again names the same ticket.
                if output.notice.ticket not in tickets:
                    tickets.append(output.notice.ticket)
                    self._requested[output.worker] -= 1
                self._unblocked.append(output.worker)
