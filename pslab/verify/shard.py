"""A shard under the schedule: it executes the log, and stages payloads with as little memory as there may be."""

import numpy as np

from pslab.verify.invariants import InvariantViolation, expect
from psserver.coordinator import Coordinator
from psserver.optimizers import build
from psserver.policies import TensorParts
from psserver.shard import Shard
from pswire.decisions.entries import Entry
from pswire.model.plan import VariableSpec, make_plan


class StagedShard:
    """One real shard of two numbers. `staging`: payloads that it holds out of turn; 1 is the hardest for a policy."""

    def __init__(self, *, workers: int, tensors: TensorParts, staging: int = 1) -> None:
        plan = make_plan([VariableSpec("w", (2,))], 1)
        optimizer = build({"name": "sgd", "learning_rate": 0.5})
        # Readers are no part of it: there are enough versions that nobody waits for one.
        # Weights may be as large as a policy makes them.
        self._shard = Shard(
            plan, 0, optimizer, versions=2 * workers + 2, staging=staging, tensors=tensors, unchecked=True
        )
        self._folded: set[int] = set()

    def push(self, ticket: int) -> bool:
        """Stage a payload for the ticket. False: it has to wait for its turn."""
        shard = self._shard
        if shard.refusal(ticket) is not None:
            return True  # the coordinator refuses the commit of what is over
        if not shard.staging.admits(ticket):
            return False
        slot = shard.begin(ticket)
        slot.values[...] = np.float32(1.0)
        shard.staging.finish(slot)
        return True

    def execute(self, entry: Entry) -> None:
        """Raises InvariantViolation when the shard cannot do what was decided."""
        try:
            # Weights may be as large as they like: the optimizer decides what comes of them.
            with np.errstate(all="ignore"):
                self._shard.execute(entry.order(self._folded))
        except Exception as error:
            raise InvariantViolation(
                f"a shard cannot execute {entry}: {type(error).__name__}: {error}"
            ) from error

    def somebody_can_move(self, coordinator: Coordinator) -> None:
        """Raises InvariantViolation when everybody waits, for a grant or for its payload to be let in."""
        staging = self._shard.staging
        if coordinator.stopped is not None or not staging.tickets:
            return
        held_back = []
        for member in coordinator.roster.present.values():
            opened = coordinator.tickets.open_of(member.worker)
            if opened and not staging.admits(opened[0].number):
                held_back.append(opened[0].number)
            elif opened or (member.state != "done" and member.requested is None) or member.absent_since:
                return
        expect(
            not held_back,
            f"the shards do not let in the payloads of tickets {held_back}: an earlier turn is granted that "
            "nobody contributes, and all others wait",
        )
