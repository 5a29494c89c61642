"""Acts played one by one: every step is checked, and executed by a real shard with the least memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pslab.verify.harness import CoordinatorHarness, refusals
from pslab.verify.invariants import Guard, InvariantViolation, expect, within
from pslab.verify.trace_format import do
from psserver.coordinator import Coordinator, Input, JobState, Output, Record
from psserver.decisions.entries import Apply, Cancel, Drop, Entry, Fold, Grant
from psserver.optimizers import build as build_optimizer
from psserver.policies import TensorParts, build
from psserver.records import StateError
from psserver.shard import Shard
from pswire.model.plan import VariableSpec, make_plan

# Seconds of `worker_timeout` in every schedule.
TIMEOUT = 3.0


class StagedShard:
    """One real shard of two numbers. `staging`: payloads that it stages before their turn; 1 is the hardest."""

    def __init__(self, *, workers: int, tensors: TensorParts, staging: int = 1) -> None:
        plan = make_plan([VariableSpec("w", (2,))], 1)
        optimizer = build_optimizer({"name": "sgd", "learning_rate": 0.5})
        # Enough versions that no update waits for readers.
        self._shard = Shard(plan, 0, optimizer, versions=2 * workers + 2, staging=staging, tensors=tensors)
        self._folded: set[int] = set()

    def push(self, ticket: int) -> bool:
        """Stage a payload for the ticket. Return False if it has to wait for its turn."""
        shard = self._shard
        if shard.refusal(ticket) is not None:
            return True  # the ticket is over: the coordinator will refuse the commit
        if not shard.staging.admits(ticket):
            return False
        slot = shard.begin(ticket)
        slot.values[...] = np.float32(1.0)
        shard.staging.finish(slot)
        return True

    def execute(self, entry: Entry) -> None:
        """Execute one entry. Raises InvariantViolation if the shard cannot."""
        try:
            self._shard.execute(entry.order(self._folded))
        except Exception as error:
            raise InvariantViolation(
                f"a shard cannot execute {entry}: {type(error).__name__}: {error}"
            ) from error

    def somebody_can_move(self, coordinator: Coordinator) -> None:
        """Raise InvariantViolation if every worker waits, for a grant or for room for its payload."""
        staging = self._shard.staging
        if coordinator.state.stopped is not None or not staging.tickets:
            return
        held_back = []
        for member in coordinator.state.roster.present.values():
            opened = coordinator.state.tickets.open_of(member.worker)
            if opened and not staging.admits(opened[0].number):
                held_back.append(opened[0].number)
            elif opened or (member.state != "done" and member.requested is None) or member.absent_since:
                return
        expect(
            not held_back,
            f"the shards have no room for the payloads of tickets {held_back}: no worker contributes an earlier turn "
            "that was granted, and all others wait",
        )


@dataclass(frozen=True)
class Case:
    """The policy to verify, by its name or as module:Class, and the job that it runs in."""

    policy: str
    knobs: Mapping[str, object] = field(default_factory=dict)
    workers: int = 3

    @property
    def head(self) -> list[str]:
        """The head of a trace."""
        terms = (f"{term}: {value:g}" for term, value in self.terms.items())
        return [f"policy: {named(self.policy, self.knobs)}", f"workers: {self.workers}", *terms]

    @property
    def terms(self) -> dict[str, Any]:
        """The job's terms."""
        return {"worker_timeout": TIMEOUT, "regather": TIMEOUT}

    def harness(self) -> CoordinatorHarness:
        """Return a new harness of the job, which checks nothing."""
        return PatientHarness(self.policy, self.knobs, self.workers, self.terms)


class PatientHarness(CoordinatorHarness):
    """A harness that raises InvariantViolation for a step that hangs, within `patient`, and for a state that the policy
    does not take up again."""

    def gives(self, given: Input) -> list[Output]:
        with within(f"policy {self.policy}: its step"):
            outputs = self.coordinator.take(given, self.now)
        return self.take(outputs)

    def _new(self, state: JobState | None = None) -> Coordinator:
        with within(f"policy {self.policy}: taking up its state"):
            try:
                return super()._new(state)
            except StateError as error:
                raise InvariantViolation(str(error)) from error


class GuardedHarness(PatientHarness):
    """A harness that checks the invariants after every step, and whose log a shard executes.

    Raises InvariantViolation. `terms`: of the job, beside those of the case.
    """

    def __init__(self, case: Case, **terms: Any) -> None:
        policy = build(case.policy, case.knobs, case.workers)
        self.guard = Guard(case.policy)
        self.servers = StagedShard(workers=case.workers, tensors=policy.tensors)
        super().__init__(case.policy, case.knobs, case.workers, case.terms | terms)

    def take(self, outputs: list[Output]) -> list[Output]:
        super().take(outputs)
        for output in outputs:
            if isinstance(output, Record):
                self.guard.read(output)
                self.servers.execute(output.entry)
        self.guard.compare(self.coordinator)
        self.servers.somebody_can_move(self.coordinator)
        return outputs

    def commits(self, worker: str, ticket: int | None = None, **facts: Any) -> list[Output]:
        held = self.holds(worker) if ticket is None else ticket
        if held is not None:
            self.servers.push(held)
        return super().commits(worker, ticket, **facts)

    @property
    def fault(self) -> str:
        """Why the policy made the job fail; empty if it did not."""
        stopped = self.coordinator.state.stopped
        blamed = stopped is not None and stopped.cause == "policy" and not stopped.success
        return stopped.reason if stopped is not None and blamed else ""

    def plays(self, line: str) -> bool:
        """Play an act if an honest worker can do that now; return whether it could. A commit's payload is staged."""
        if not self._possible(line):
            return False
        who, verb, *rest = line.split()
        held, before = self.holds(who), len(self.outputs)
        said = list(do(self, line))
        if held is not None and verb.startswith(("commits", "abandons")) and not any(map(str.isdigit, rest)):
            said = refusals(self.outputs[before:])
        if said and verb != "becomes" and self.coordinator.state.stopped is None:
            raise InvariantViolation(f"{line!r} is refused: {'; '.join(said)}")
        # Without a version there is nothing to restart from.
        return verb != "restart" or len(self.outputs) > before

    def _possible(self, line: str) -> bool:
        who, verb, *rest = line.split()
        member = self.coordinator.state.roster.present.get(who)
        if verb in ("seconds", "joins", "becomes"):
            return True
        if verb in ("restart", "takes"):
            return self.coordinator.state.stopped is None and self._can_be_saved()
        if member is None:
            return False
        if verb == "leaves":
            return True
        if verb == "reconnects":
            return member.absent_since is not None
        if member.absent_since is not None:
            return False
        if verb not in ("commits", "commits-its-last", "abandons", "asks-ahead"):
            return True
        numbers = [int(word) for word in rest if word.isdigit()]
        ticket = numbers[0] if numbers else self.holds(who)
        if ticket is None:
            return False
        return not verb.startswith("commits") or self.servers.push(ticket)

    def _can_be_saved(self) -> bool:
        with within(f"policy {self.policy}: its state()"):
            try:
                self.coordinator.saved()
            except StateError:
                return False
            return True


@dataclass(frozen=True)
class Played:
    """`acts`: those that were possible, up to the fault. `fault`: its sentence; empty if there was none."""

    acts: list[str]
    fault: str
    decisions: list[Entry]


def play(case: Case, acts: Iterable[str]) -> Played:
    """Play the acts in a new harness, until the first fault. Raises PolicyError when the policy cannot be built."""
    harness, played = GuardedHarness(case), list[str]()
    for line in acts:
        try:
            if harness.plays(line):
                played.append(line)
        except InvariantViolation as breach:
            return Played([*played, line], harness.fault or str(breach), decisions(harness.log))
        if harness.fault:
            break
    return Played(played, harness.fault or harness.guard.complaint, decisions(harness.log))


def decisions(log: Iterable[Record]) -> list[Entry]:
    """Return the policy's decisions."""
    kinds = Grant | Fold | Apply | Drop | Cancel
    return [record.entry for record in log if isinstance(record.entry, kinds)]


def named(name: str, knobs: Mapping[str, object]) -> str:
    """Return a policy as a trace has it."""
    return " ".join([name, *(f"{knob}={_toml(value)}" for knob, value in knobs.items())])


def _toml(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
