"""A schedule played from its acts: every step is checked, and executed by a real shard with the least memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pslab.verify.harness import CoordinatorHarness
from pslab.verify.invariants import Guard, InvariantViolation, expect
from pslab.verify.time_limit import PATIENCE, TimeLimitedPolicy
from pslab.verify.trace_format import act
from psserver.coordinator import Coordinator, Output, Record
from psserver.decisions.entries import Apply, Cancel, Drop, Entry, Fold, Grant
from psserver.optimizers import build as build_optimizer
from psserver.policies import Policy, TensorParts, build
from psserver.shard import Shard
from pswire.model.plan import VariableSpec, make_plan

# Seconds of `worker_timeout` in every schedule.
TIMEOUT = 3.0
# The loss of a commit whose act says nothing else.
USUAL_LOSS = 0.5
NO_CONTROLLER: Mapping[str, object] = {}


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
    """The policy to verify, by its name or as module:Class, and the job that it runs in. `adapt`: its controller."""

    policy: str
    knobs: Mapping[str, object] = field(default_factory=dict)
    workers: int = 3
    adapt: Mapping[str, object] = field(default_factory=dict)

    @property
    def head(self) -> list[str]:
        """The head of a trace."""
        return [
            f"policy: {named(self.policy, self.knobs)}",
            f"workers: {self.workers}",
            f"worker_timeout: {TIMEOUT:g}",
            f"regather: {TIMEOUT:g}",
            *([f"adapt: {named_config(self.adapt)}"] if self.adapt else []),
        ]

    @property
    def terms(self) -> dict[str, Any]:
        """The job's terms."""
        return {"worker_timeout": TIMEOUT, "regather": TIMEOUT, "adapt": self.adapt}


class TimedHarness(CoordinatorHarness):
    """A harness whose policies are stopped when a step takes longer than `patience`."""

    def __init__(self, case: Case, patience: float = PATIENCE) -> None:
        self._patience = patience
        super().__init__(case.policy, case.knobs, workers=case.workers, terms=case.terms, now=0.0)

    def built(self, name: str, knobs: Mapping[str, object]) -> Policy:
        return TimeLimitedPolicy(super().built(name, knobs), self._patience)


class GuardedHarness(TimedHarness):
    """A harness that checks the invariants after every step, and whose log a shard executes.

    Raises InvariantViolation.
    """

    def __init__(self, case: Case, patience: float = PATIENCE) -> None:
        policy = build(case.policy, case.knobs, case.workers)
        self.guard = Guard(case.policy)
        self.servers = StagedShard(workers=case.workers, tensors=policy.tensors)
        super().__init__(case, patience)

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


@dataclass(frozen=True)
class Played:
    """`acts`: those that were possible, up to the fault. `fault`: its sentence; empty if there was none."""

    acts: list[str]
    fault: str
    decisions: list[Entry]


def play(case: Case, acts: Iterable[str], patience: float = PATIENCE) -> Played:
    """Play the acts in a new harness, until the first fault. Raises PolicyError when the policy cannot be built."""
    harness = GuardedHarness(case, patience)
    played: list[str] = []
    for line in acts:
        if not possible(harness, line):
            continue
        played.append(line)
        try:
            for _ in act(harness, line):
                pass
        except InvariantViolation as breach:
            return Played(played, str(breach), decisions(harness.log))
        if harness.fault:
            break
    return Played(played, harness.fault or harness.guard.complaint, decisions(harness.log))


def possible(harness: GuardedHarness, line: str) -> bool:
    """Return True if an honest worker can do that now. A commit's payload is staged first, as by a real worker."""
    who, verb, *rest = line.split()
    member = harness.coordinator.state.roster.present.get(who)
    if verb in ("seconds", "joins", "becomes", "make"):
        return True
    if verb in ("restart", "takes"):
        return harness.coordinator.state.stopped is None
    if member is None:
        return False
    if verb in ("leaves", "reconnects"):
        return True
    if member.absent_since is not None:
        return False
    if verb not in ("commits", "commits-its-last", "abandons"):
        return True
    named = [int(word) for word in rest if word.isdigit()]
    ticket = named[0] if named else harness.holds(who)
    if ticket is None:
        return False
    return verb == "abandons" or harness.servers.push(ticket)


def decisions(log: Iterable[Record]) -> list[Entry]:
    """Return the policy's decisions."""
    kinds = Grant | Fold | Apply | Drop | Cancel
    return [record.entry for record in log if isinstance(record.entry, kinds)]


def named(name: str, knobs: Mapping[str, object]) -> str:
    """Return a policy as a trace has it."""
    return " ".join([name, *(f"{knob}={_toml(value)}" for knob, value in knobs.items())])


def named_config(config: Mapping[str, object]) -> str:
    """Return a name and knobs as a trace has them."""
    return named(str(config["name"]), {key: value for key, value in config.items() if key != "name"})


def _toml(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
