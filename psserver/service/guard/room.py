"""Admission by memory: which models, members, payloads and shared slots fit, by one account."""

from collections import Counter
from collections.abc import Callable, Mapping

import grpc

from psserver.coordinator.roster import MAX_NAME_BYTES
from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.service.errors import Refused
from psserver.service.guard.ledger import MIB, MemoryLedger
from psserver.service.guard.limits import NAMES
from psserver.shard import Shard
from psserver.shard.compensators import build_compensator
from psserver.shard.deltas import stream_bytes
from pswire.model.plan import Plan, ShardLayout
from pswire.model.rows import Rows
from pswire.transport.blocks import BlockCodec

# Tickets that a worker holds at once: the present one, and one granted ahead.
TICKETS = 2


def model_needs(
    layout: ShardLayout,
    optimizer: Optimizer,
    tensors: TensorParts,
    versions: int,
    deltas: BlockCodec | None = None,
) -> dict[str, int]:
    """Return the bytes by kind that a shard needs to publish versions, one payload at a time."""
    weights, compensator = 4 * layout.trainable, build_compensator(tensors)
    names = [] if compensator is None else [n for n in compensator.init(0) if n not in compensator.constants]
    needs = {
        "versions": versions * layout.nbytes,
        "optimizer": 0 if optimizer.per_worker else len(optimizer.slots) * weights,
        # Workers step one after the other, from one array into the next.
        "step": weights if optimizer.per_worker else 0,
        # And as it was before an update, of which elements may be kept back.
        "compensator": 2 * len(names) * weights,
        "sum": 0 if keeps_payloads(optimizer, tensors) else layout.nbytes,
        "payload": layout.nbytes,
        "changes": 0 if deltas is None else stream_bytes(deltas, layout),
    }
    return {kind: nbytes for kind, nbytes in needs.items() if nbytes}


def member_needs(layout: ShardLayout, optimizer: Optimizer, tensors: TensorParts) -> dict[str, int]:
    """Return the bytes by kind that each member needs, or no update would ever be complete."""
    slots = len(optimizer.slots) * 4 * layout.trainable if optimizer.per_worker else 0
    kept = layout.nbytes if keeps_payloads(optimizer, tensors) else 0
    needs = {
        # And as they were before an update.
        "optimizer": 2 * slots,
        "base versions": TICKETS * layout.nbytes if tensors.keep_bases else 0,
        "contributions": kept,
    }
    return {kind: nbytes for kind, nbytes in needs.items() if nbytes}


def keeps_payloads(optimizer: Optimizer, tensors: TensorParts) -> bool:
    """Return whether all contributions of an update are kept side by side until it is made."""
    return optimizer.per_worker or tensors.lists


def beyond(shard: Shard) -> int:
    """Return the bytes beyond `model_needs`, in a few steps: the sum of `held` less that."""
    layout, optimizer = shard.layout, shard.optimizer
    payloads = max(0, shard.staging.own - usual_payloads(shard.optimizer, shard.tensors))
    sets = len(shard.slots) if optimizer.per_worker else 0
    slots = sets * len(optimizer.slots) * 4 * layout.trainable
    rows = shard.tables.nbytes + shard.staging.row_bytes if shard.tables else 0
    return (payloads + shard.arena.beyond) * layout.nbytes + slots + rows + shard.bases.nbytes


def held(shard: Shard) -> Counter[str]:
    """Return the bytes of everything that a shard holds, or keeps free for the model, by kind."""
    layout, optimizer, staging, arena = shard.layout, shard.optimizer, shard.staging, shard.arena
    n = layout.nbytes
    needs = model_needs(layout, optimizer, shard.tensors, arena.limit, shard.deltas)
    found = Counter({kind: nbytes for kind, nbytes in needs.items() if kind not in ("sum", "payload")})
    _, kept = shard.owned
    # Of tickets, the sum, buffers for reuse, and buffers that are kept free.
    payloads = max(staging.own, usual_payloads(shard.optimizer, shard.tensors)) - len(kept)
    found["payloads"] += payloads * n
    found["contributions"] += len(kept) * n
    read = min(len(arena.being_read), arena.beyond)
    found["versions being read"] += read * n
    found["base versions"] += (arena.beyond - read) * n
    if optimizer.per_worker:
        found["optimizer"] += len(shard.slots) * len(optimizer.slots) * 4 * layout.trainable
    found["state of base versions"] += shard.bases.nbytes
    if shard.tables:
        found["rows of tables"] += shard.tables.nbytes
        found["rows of payloads"] += staging.row_bytes
    return found


def usual_payloads(optimizer: Optimizer, tensors: TensorParts) -> int:
    """Return the buffers among the model's needs: one payload, and a sum if there is one."""
    return 1 if keeps_payloads(optimizer, tensors) else 2


# What helps when tables have grown too large.
MORE_ROOM = "rules for admission and eviction (TableSpec's admit and evict_*), a smaller dim, or more servers make room"
SLOTS = "shared slots"
COPY = "copies of optimizer state and tables"


class ShardMemory:
    """The memory account of one server (`ledger`), and what it admits. The owner of the shard owns it.

    `versions`: buffers for versions; `limit`: bytes in all.
    """

    def __init__(self, server: int, versions: int, limit: int) -> None:
        self.ledger = MemoryLedger(limit)
        self.ledger.watch(self._nbytes, self._held)
        # The shard that the account counts, once it is made.
        self.shard: Shard | None = None
        self._server, self._versions = server, versions
        # Bytes that the model needs, and of slots that each worker shares.
        self._model = 0
        self._slots: dict[str, int] = {}
        # Called if there is no room: releases what is kept only to save time later.
        self.release: Callable[[], None] = lambda: None

    def _nbytes(self) -> int:
        """Return the shard's bytes from a few numbers that any thread may read."""
        return 0 if self.shard is None else self._model + beyond(self.shard)

    def _held(self) -> Counter[str]:
        return Counter() if self.shard is None else held(self.shard)

    # Models and members

    def admit(
        self, plan: Plan, optimizer: Optimizer, tensors: TensorParts, deltas: BlockCodec | None = None
    ) -> None:
        """Raise Refused, with the numbers, for a model that cannot fit. No memory is allocated before."""
        layout = plan.shards[self._server]
        needs = self._needs(layout, optimizer, tensors, deltas)
        each = member_needs(layout, optimizer, tensors)
        total = sum(needs.values())
        if total + sum(each.values()) > self.ledger.limit:
            raise _refused(
                f"server {self._server} has no memory for this model: its part has {layout.nbytes / MIB:.1f} MiB, "
                f"which takes {total / MIB:.1f} MiB at least ({_listing(needs)}){_for_each(each)}, and "
                f"--memory-limit is {self.ledger.limit / MIB:.1f} MiB"
            )
        self._model = total

    def admit_members(
        self,
        members: int,
        plan: Plan,
        optimizer: Optimizer,
        tensors: TensorParts,
        deltas: BlockCodec | None = None,
    ) -> None:
        """Raise Refused, with the numbers, if that many members cannot all have what each needs.

        Counts the largest part of the model, as if every server had this one's limit.
        """
        layout = max(plan.shards, key=lambda shard: shard.nbytes)
        each = member_needs(layout, optimizer, tensors)
        if not each:
            return
        model = sum(self._needs(layout, optimizer, tensors, deltas).values())
        total = model + members * sum(each.values())
        if total > self.ledger.limit:
            raise _refused(
                f"no memory for worker number {members}: the model takes {model / MIB:.1f} MiB{_for_each(each)}, which "
                f"makes {total / MIB:.1f}, and --memory-limit is {self.ledger.limit / MIB:.1f} MiB"
            )

    def _needs(
        self, layout: ShardLayout, optimizer: Optimizer, tensors: TensorParts, deltas: BlockCodec | None
    ) -> dict[str, int]:
        return model_needs(layout, optimizer, tensors, self._versions, deltas)

    # Payloads, slots, versions

    def admits(self, ticket: int) -> bool:
        """Return whether one more payload fits, for this open ticket.

        One payload always fits: its room is part of the model's. Where sums have a fixed order, that one is the
        next to be summed, so that all others come to their end.
        """
        shard = self.shard
        assert shard is not None
        staging, nbytes = shard.staging, shard.layout.nbytes
        if not staging.held:
            # The one that always fits. Small steps end before the next begins, so nothing is added up for them.
            return True
        # Counts a buffer beyond the model's for each payload.
        usual = usual_payloads(shard.optimizer, shard.tensors)
        others = self.ledger.total - nbytes * max(0, staging.own - usual)
        owned, kept = shard.owned
        using = len(owned) + len(kept)
        if others + (using + 1) * nbytes <= self.ledger.limit:
            return True
        if staging.next_in_turn(ticket):
            return True
        before = self.ledger.total
        self.release()
        others -= before - self.ledger.total
        staging.trim()
        return others + (using + 1 - staging.next_is_held()) * nbytes <= self.ledger.limit

    def refuses_rows(self, rows: Rows) -> str | None:
        """Return why there is no room for an update with a payload's rows, and with all others that wait, or None."""
        shard = self.shard
        assert shard is not None
        room = self.ledger.limit - self.ledger.total
        if shard.tables.demand(rows, exact=False) <= room // max(1, len(shard.members)):
            # Its member's share of what is free, which nobody else may take: large payloads hold up no small ones.
            return None
        several = [rows, *shard.staging.all_rows(), *(each for each, _ in shard.tables.added)]
        if sum(shard.tables.demand(each, exact=False) for each in several) <= room:
            return None
        if (demand := sum(map(shard.tables.demand, several))) <= room:
            return None
        return (
            f"server {self._server} has no memory for an update of rows of its tables: expected at most "
            f"{self.ledger.limit / MIB:.1f} MiB in all (--memory-limit), of which {max(room, 0) / MIB:.1f} are free, "
            f"got rows that would take {demand / MIB:.1f}, with the rows that wait for the same update; {MORE_ROOM}, "
            "and fewer rows in one batch need less"
        )

    def admit_name(self, kept: int) -> None:
        """Raise Refused if there is no room for one more name. Names are kept because their workers may come back."""
        most = NAMES.value
        if kept + MAX_NAME_BYTES > most:
            raise _refused(
                f"no memory for one more name: expected at most {most / MIB:.1f} MiB for what is kept of all names "
                f"that have ever joined, got {kept / MIB:.1f} already; --max-workers says how many there may be"
            )

    def take_slots(self, worker: str, slots: int) -> str | None:
        """Reserve slots of a payload's size that are shared with `worker`; return why there is no room, or None."""
        shard = self.shard
        if shard is None:
            return "there is no model yet"
        nbytes = slots * shard.layout.nbytes
        refusal = self.ledger.take(SLOTS, nbytes)
        if refusal is not None:
            self.release()
            shard.staging.trim()
            refusal = self.ledger.take(SLOTS, nbytes)
        if refusal is None:
            self._slots[worker] = nbytes
        return refusal

    def give_slots(self, worker: str) -> None:
        """Release the slots of `worker`."""
        self.ledger.give(SLOTS, self._slots.pop(worker))

    def take_copy(self, nbytes: int) -> str | None:
        """Reserve a copy of the optimizer's state or of a table; return why there is no room, or None."""
        refusal = self.ledger.take(COPY, nbytes)
        if refusal is not None:
            self.release()
            refusal = self.ledger.take(COPY, nbytes)
        return refusal

    def give_copy(self, nbytes: int) -> None:
        """Release the copy."""
        self.ledger.give(COPY, nbytes)

    @property
    def versions_beyond(self) -> int:
        """How many reads of superseded versions must end, so that the total is within the limit."""
        if self.shard is None or not self.shard.layout.nbytes:
            return 0
        if self.ledger.total > self.ledger.limit:
            self.release()
        nbytes = self.shard.layout.nbytes
        return max(0, -(-(self.ledger.total - self.ledger.limit) // nbytes))


def _refused(message: str) -> Refused:
    return Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, message)


def _listing(needs: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {nbytes / MIB:.1f}" for kind, nbytes in needs.items())


def _for_each(needs: Mapping[str, int]) -> str:
    return f", and {sum(needs.values()) / MIB:.1f} for each worker ({_listing(needs)})" if needs else ""
