"""The account of the memory that peers can make a server hold, against --memory-limit."""

from collections.abc import Mapping
from typing import Final

from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.service.errors import exhausted
from psserver.shard import Shard
from psserver.shard.compensators import build_compensator
from psserver.shard.deltas import stream_bytes
from pswire.model.plan import ShardLayout
from pswire.model.rows import Rows
from pswire.transport.blocks import BlockCodec

MIB: Final = 2**20
# Tickets that a worker holds at once: the present one, and one granted ahead.
TICKETS: Final = 2
# Bytes that the connections of an idle worker take, with a margin.
CONNECTIONS: Final = 2**19
# What helps when tables have grown too large.
MORE_ROOM = "rules for admission and eviction (TableSpec's admit and evict_*), a smaller dim, or more servers make room"


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
        "optimizer": len(optimizer.slots) * weights,
        # And as it was before an update, of which elements may be kept back.
        "compensator": 2 * len(names) * weights,
        # One, and the sum of all unless they are kept side by side.
        "payloads": (1 if tensors.lists else 2) * layout.nbytes,
        "changes": 0 if deltas is None else stream_bytes(deltas, layout),
    }
    return {kind: nbytes for kind, nbytes in needs.items() if nbytes}


def member_needs(layout: ShardLayout, tensors: TensorParts) -> dict[str, int]:
    """Return the bytes by kind that each member needs, or no update would ever be complete."""
    needs = {
        "connections": CONNECTIONS,
        "base versions": TICKETS * layout.nbytes if tensors.keep_bases else 0,
        "contributions": layout.nbytes if tensors.lists else 0,
    }
    return {kind: nbytes for kind, nbytes in needs.items() if nbytes}


class Memory:
    """The account of one server: at most `limit` bytes, of which `reserved` are taken by `take`. `versions`: buffers
    for versions. The loop's thread owns it.

    A formula admits a model and its members before anything is made for them. What grows later is taken before it is
    made. Only what changes with every order of the log is counted where it lies: payloads, older versions, rows of
    tables.
    """

    def __init__(self, limit: int, versions: int) -> None:
        self.limit, self.reserved = limit, 0
        self._versions = versions
        self._shard: Shard | None = None
        # Bytes of the model's needs: of payloads, and of all else.
        self._payloads = self._model = 0

    def admit(
        self,
        layout: ShardLayout,
        optimizer: Optimizer,
        tensors: TensorParts,
        deltas: BlockCodec | None = None,
        *,
        members: int = 1,
    ) -> None:
        """Raise Refused, with the numbers, unless the model fits with what so many members need."""
        needs = model_needs(layout, optimizer, tensors, self._versions, deltas)
        each = member_needs(layout, tensors)
        model, member = sum(needs.values()), sum(each.values())
        if model + members * member > self.limit:
            whom = "this model" if members == 1 else f"worker number {members}"
            raise exhausted(
                f"server {layout.server} has no memory for {whom}: its part has {layout.nbytes / MIB:.1f} MiB, which "
                f"takes {model / MIB:.1f} MiB at least ({_listing(needs)}), and {member / MIB:.1f} for each worker "
                f"({_listing(each)}), and --memory-limit is {self.limit / MIB:.1f} MiB: raise it, or use more servers",
            )

    def serve(self, shard: Shard) -> None:
        """Count this shard from now on. Its model has been admitted."""
        needs = model_needs(shard.layout, shard.optimizer, shard.tensors, self._versions, shard.deltas)
        self._shard, self._payloads = shard, needs.get("payloads", 0)
        self._model = sum(needs.values()) - self._payloads

    def parts(self) -> dict[str, int]:
        """Return the bytes of each kind; together they are the total."""
        found, shard = {"reserved": self.reserved}, self._shard
        if shard is not None:
            layout = shard.layout
            found["model"] = self._model
            found["payloads"] = max(self._payloads, shard.staging.own * layout.nbytes)
            found["older versions"] = shard.arena.beyond * layout.nbytes + shard.bases.nbytes
            found["rows of tables"] = shard.tables.nbytes + shard.staging.row_bytes
        return found

    @property
    def total(self) -> int:
        return sum(self.parts().values())

    def take(self, nbytes: int) -> str | None:
        """Reserve `nbytes`; return None, or the reason why there is no room, with nothing changed."""
        if self.total + nbytes > self.limit and self._shard is not None:
            # Free payload buffers are kept to be used again only.
            self._shard.staging.trim()
        total = self.total
        if total + nbytes > self.limit:
            return (
                f"expected at most {self.limit / MIB:.1f} MiB in all (--memory-limit), of which {total / MIB:.1f} are "
                f"taken, got {nbytes / MIB:.1f} more"
            )
        self.reserved += nbytes
        return None

    def give(self, nbytes: int) -> None:
        """Release what was taken."""
        self.reserved -= nbytes

    def admits_payload(self, ticket: int) -> bool:
        """Return whether one more payload fits, for this open ticket. One always does: its room is part of the model's.

        Others leave room for the sum and for the one that goes before all others on every server, so that all of them
        come to their end.
        """
        shard = self._shard
        assert shard is not None
        staging, nbytes = shard.staging, shard.layout.nbytes
        if staging.is_next(ticket):
            return True
        summed = max(self._payloads - nbytes, (staging.own - staging.held - staging.free) * nbytes)
        wanted = summed + (staging.held + (1 if staging.next_is_held() else 2)) * nbytes
        present = max(self._payloads, staging.own * nbytes)
        return wanted <= present or self.total - present + wanted <= self.limit

    def refuses_rows(self, rows: Rows) -> str | None:
        """Return why there is no room for an update with a payload's rows, and with all others that wait, or None."""
        shard = self._shard
        assert shard is not None
        tables, room, demand = shard.tables, self.limit - self.total, 0
        if tables.demand(rows, exact=False) <= room // max(1, len(shard.members)):
            # An even share of what is free is let in always, so that large payloads keep out no small ones.
            return None
        several = [rows, *shard.staging.all_rows(), *(each for each, _ in tables.added)]
        # Which rows are new has to be looked up, so first all are taken for new.
        for exact in (False, True):
            demand = sum(tables.demand(each, exact=exact) for each in several)
            if demand <= room:
                return None
        return (
            f"server {shard.layout.server} has no memory for an update of rows of its tables: expected at most "
            f"{self.limit / MIB:.1f} MiB in all (--memory-limit), of which {max(room, 0) / MIB:.1f} are free, "
            f"got rows that would take {demand / MIB:.1f}, with the rows that wait for the same update; {MORE_ROOM}, "
            "and fewer rows in one batch need less"
        )


def _listing(needs: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {nbytes / MIB:.1f}" for kind, nbytes in needs.items())
