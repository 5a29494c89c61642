"""A server without a copy is given one, and takes it up."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from psserver.coordinator import CoordinatorState
from psserver.service.guard.ledger import MODEL, MemoryLedger
from psserver.service.job.job import Job
from psserver.service.replicas.deciding import ReplicatedDecider
from psserver.service.replicas.transfer import Arriving, CopyError, Whole, digest_of, first_difference
from psserver.shard import Shard, ShardState
from pswire.decisions.counting import Pending
from pswire.patience import transfer
from pswire.v1 import shard_pb2

# Kind of memory of a copy that arrives.
KIND = "copy that arrives"


class Arrival:
    """The copy under way to this server. The loop's thread owns it. `here`: whether all of it has come."""

    def __init__(self, memory: MemoryLedger) -> None:
        self._memory = memory
        self._arriving: Arriving | None = None
        self.here = False

    @property
    def at(self) -> int:
        """How many items are executed in it; 0 if none has begun to come."""
        return 0 if self._arriving is None else self._arriving.at

    def take(self, piece: shard_pb2.CopyPiece) -> None:
        """Take a piece; the first one of a copy replaces what came before. Raises Refused for one that does not
        follow, and CopyError if there is no memory for the copy and its arrays."""
        if not piece.offset:
            self.end()
            refusal = self._memory.take(MODEL, KIND, 2 * piece.bytes)
            if refusal is not None:
                raise CopyError(f"there is no memory for a copy: {refusal}")
            self._arriving = Arriving(piece)
        if self._arriving is not None:
            self.here = self._arriving.take(piece)

    def read(self) -> Whole:
        """Return the copy. From any thread. Raises CopyError for a damaged one."""
        assert self._arriving is not None
        return self._arriving.read()

    def end(self) -> None:
        """Keep nothing of it."""
        self._arriving, self.here = None, False
        self._memory.put(MODEL, KIND, 0)


def pending_of(about: Mapping[str, Any]) -> Pending:
    """Return what is known of contributions without a fate."""
    found = about["pending"]
    tickets = {int(ticket): (int(samples), float(loss)) for ticket, samples, loss in found["tickets"]}
    return Pending(tickets, int(found["samples"]), found["losses"])


async def take_up(
    whole: Whole, state: CoordinatorState, job: Job, configure: Callable[[shard_pb2.Configure], None]
) -> None:
    """Restore a new job from a copy; `state`: the coordinator's in it. `configure` makes the shard.

    Raises StateError, Refused, CopyError, and what a damaged copy leads to: ValueError, KeyError, TypeError.
    """
    about, decider, host = whole.about, job.decider, job.host
    assert isinstance(decider, ReplicatedDecider)
    coordinator = decider.coordinator
    if about["model"]:
        decider.model = shard_pb2.Configure.FromString(base64.b64decode(about["model"]))
        configure(decider.model)
        shard, plan = host.state.shard, job.agreement.plan
        assert shard is not None and plan is not None
        coordinator.planned(transfer(plan.shards[0].nbytes, 0.0))
        # Nobody else has this shard yet.
        await host.heavy.on_pool(lambda: _restore(shard, whole))
    if job.agreement.optimizer is not None:
        coordinator.agree(job.agreement.optimizer.config)
    coordinator.restore(state)
    decider.assurance.restore({str(name): float(bound) for name, bound in about["bounds"].items()})
    began = about["first_grant"]
    first_grant = None if began is None else float(began)
    decider.routes.go_on(state.entries, state.version, coordinator.folded, first_grant)
    decider.take_up(coordinator)
    decider.hear(float(about["now"]))
    host.go_on(state.entries)


def _restore(shard: Shard, whole: Whole) -> None:
    """Restore the shard. Raises CopyError for a version that is not the primary's, and as `take_up`."""
    about = whole.about
    shard.restore(ShardState.from_json(about["shard"], whole.arrays))
    own, expected = digest_of(shard, shard.version), bytes.fromhex(about["digest"])
    if own != expected:
        where = first_difference(shard, own, expected)
        raise CopyError(f"version {shard.version} is not the primary's: it differs in {where}")
