"""Room for a shard: which model, which members, which payloads and slots memory admits. All in one account."""

from collections.abc import Callable, Iterator, Mapping

import grpc

from psserver.coordinator.members.roster import MAX_NAME_BYTES
from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.service.errors import Refused
from psserver.service.guard.ledger import MIB, MODEL, Held, MemoryLedger
from psserver.service.guard.limits import (
    LEAST_MEMBER_CALLS,
    LEAST_SILENT,
    LENT_SHARE,
    MEMBER_CALLS,
    NAMES_SHARE,
    SILENT,
    STRANGERS_SHARE,
)
from psserver.shard import Shard
from psserver.shard.compensators import build_compensator
from pswire.model.plan import Plan, ShardLayout
from pswire.transport.channels import RECEIVED_BYTES

# Tickets that a worker holds at once: the present one, and one granted ahead.
TICKETS = 2


def model_needs(
    layout: ShardLayout, optimizer: Optimizer, tensors: TensorParts, versions: int
) -> dict[str, int]:
    """Bytes by kind that a shard takes whoever trains it: it can publish versions then, one payload at a time."""
    weights, compensator = 4 * layout.trainable, build_compensator(tensors)
    names = [] if compensator is None else [n for n in compensator.init(0) if n not in compensator.constants]
    needs = {
        "versions": versions * layout.nbytes,
        "optimizer": 0 if optimizer.per_worker else len(optimizer.slots) * weights,
        # Workers step one after the other, from one array into the next.
        "step": weights if optimizer.per_worker else 0,
        "compensator": len(names) * weights,
        "sum": 0 if keeps_payloads(optimizer, tensors) else layout.nbytes,
        "payload": layout.nbytes,
    }
    # An update that might not be finite is computed on copies first: the sum or a payload, one more, and the version.
    copied = ("optimizer", "step", "compensator", "sum", "payload")
    needs["trial"] = sum(needs[kind] for kind in copied) + layout.nbytes
    return {kind: nbytes for kind, nbytes in needs.items() if nbytes}


def member_needs(layout: ShardLayout, optimizer: Optimizer, tensors: TensorParts) -> dict[str, int]:
    """Bytes by kind that each member must have, or no update is ever complete."""
    slots = len(optimizer.slots) * 4 * layout.trainable if optimizer.per_worker else 0
    kept = layout.nbytes if keeps_payloads(optimizer, tensors) else 0
    needs = {
        "optimizer": slots,
        "base versions": TICKETS * layout.nbytes if tensors.keep_bases else 0,
        "contributions": kept,
        "trial": slots + kept,
    }
    return {kind: nbytes for kind, nbytes in needs.items() if nbytes}


def keeps_payloads(optimizer: Optimizer, tensors: TensorParts) -> bool:
    """All contributions of an update lie side by side until it is made."""
    return optimizer.per_worker or tensors.lists


def beyond(shard: Shard) -> int:
    """Bytes beyond `model_needs`, found in a few steps: what `held` adds up to, less that."""
    layout, optimizer = shard.layout, shard.optimizer
    payloads = max(0, shard.staging.own - usual_payloads(shard.optimizer, shard.tensors))
    sets = len(shard.slots) if optimizer.per_worker else 0
    slots = sets * len(optimizer.slots) * 4 * layout.trainable
    return (payloads + shard.arena.beyond) * layout.nbytes + slots


def held(shard: Shard) -> Iterator[Held]:
    """All that a shard holds or keeps free for the model, by member and kind."""
    layout, optimizer, staging = shard.layout, shard.optimizer, shard.staging
    n = layout.nbytes
    for kind, nbytes in model_needs(layout, optimizer, shard.tensors, shard.arena.limit).items():
        if kind not in ("sum", "payload"):
            yield Held(MODEL, kind, nbytes)
    owned, kept = shard.owned
    yield from (Held(worker, "payloads", n) for worker in owned)
    yield from (Held(worker, "contributions", n) for worker in kept)
    # The sum, buffers to be used again, and those that are kept free.
    others = max(staging.own, usual_payloads(shard.optimizer, shard.tensors)) - len(owned) - len(kept)
    yield Held(MODEL, "payloads", others * n)
    holders = shard.arena.holders_beyond()
    for ticket in holders:
        opened = staging.tickets.get(ticket)
        yield Held(opened.worker if opened else MODEL, "base versions", n)
    # Of tickets that are settled: until what reads them ends.
    yield Held(MODEL, "versions", (shard.arena.beyond - len(shard.arena.lent) - len(holders)) * n)
    yield from (Held(version.reader, "versions being read", n) for version in shard.arena.lent)
    if optimizer.per_worker:
        nbytes = len(optimizer.slots) * 4 * layout.trainable
        yield from (Held(worker, "optimizer", nbytes) for worker in shard.slots)


def usual_payloads(optimizer: Optimizer, tensors: TensorParts) -> int:
    """Buffers among the model's needs: one payload, and a sum where there is one."""
    return 1 if keeps_payloads(optimizer, tensors) else 2


SLOTS = "shared slots"
COPY = "copy of optimizer state"


class ShardMemory:
    """The account of one server (`ledger`), and what it allows. Whoever owns the shard owns it.

    `versions`: buffers for versions, `limit`: bytes in all.
    """

    def __init__(self, server: int, versions: int, limit: int) -> None:
        self.ledger = MemoryLedger(limit)
        self.ledger.watch(self._nbytes, self._held)
        # What the account looks at; set when it is made.
        self.shard: Shard | None = None
        self._server, self._versions = server, versions
        # What the model needs whoever trains it.
        self._model = 0
        # Called where there is no room: what is kept only to be quicker the next time is given up.
        self.release: Callable[[], None] = lambda: None

    def _nbytes(self) -> int:
        """A few numbers of the shard, which may be read by any thread."""
        return 0 if self.shard is None else self._model + beyond(self.shard)

    def _held(self) -> Iterator[Held]:
        if self.shard is not None:
            yield from held(self.shard)

    # Models and members

    def admit(self, plan: Plan, optimizer: Optimizer, tensors: TensorParts) -> None:
        """Raises Refused, with the numbers, for a model that cannot fit: before any memory is asked for."""
        layout = plan.shards[self._server]
        needs, each = self._needs(layout, optimizer, tensors), member_needs(layout, optimizer, tensors)
        total = sum(needs.values())
        if total + sum(each.values()) > self.ledger.limit:
            raise _refused(
                f"server {self._server} has no memory for this model: its part has {layout.nbytes / MIB:.1f} MiB, "
                f"which takes {total / MIB:.1f} MiB at least ({_said(needs)}){_for_each(each)}, and --memory-limit is "
                f"{self.ledger.limit / MIB:.1f} MiB"
            )
        self._model = total

    def admit_members(self, members: int, plan: Plan, optimizer: Optimizer, tensors: TensorParts) -> None:
        """Raises Refused, with the numbers, where so many members cannot all have what each of them needs.

        Of the largest part of the model, as if every server had this one's limit.
        """
        layout = max(plan.shards, key=lambda shard: shard.nbytes)
        each = member_needs(layout, optimizer, tensors)
        if not each:
            return
        model = sum(self._needs(layout, optimizer, tensors).values())
        total = model + members * sum(each.values())
        if total > self.ledger.limit:
            raise _refused(
                f"no memory for worker number {members}: the model takes {model / MIB:.1f} MiB{_for_each(each)}, which "
                f"makes {total / MIB:.1f}, and --memory-limit is {self.ledger.limit / MIB:.1f} MiB"
            )

    def _needs(self, layout: ShardLayout, optimizer: Optimizer, tensors: TensorParts) -> dict[str, int]:
        return model_needs(layout, optimizer, tensors, self._versions)

    # Payloads, slots, versions

    def admits(self, ticket: int) -> bool:
        """One more payload, for this open ticket. One always, for which room was asked with the model's: where sums
        have a fixed order that is the next to be summed, so that all others come to their end."""
        shard = self.shard
        assert shard is not None
        staging, nbytes = shard.staging, shard.layout.nbytes
        if not staging.held:
            # The one. Small steps end before the next one begins: nothing is added up for them.
            return True
        # As if each that is held had to have a buffer beyond the model's.
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

    def admit_name(self, kept: int) -> None:
        """Raises Refused where there is no room for one more name beside what is kept of all others. Whoever has been
        here may come back."""
        most = NAMES_SHARE.value * self.ledger.limit
        if kept + MAX_NAME_BYTES > most:
            raise _refused(
                f"no memory for one more name: expected at most {most / MIB:.1f} MiB (a part of --memory-limit) for "
                f"what is kept of all names that have ever joined, got {kept / MIB:.1f} already; --max-workers says "
                "how many there may be"
            )

    def take_slots(self, worker: str, slots: int) -> str | None:
        """Account for so many slots of a payload's size that are shared with `worker`; or why there is no room."""
        shard = self.shard
        if shard is None:
            return "there is no model yet"
        share = self.share
        nbytes = slots * shard.layout.nbytes
        refusal = self.ledger.take(worker, SLOTS, nbytes, share)
        if refusal is not None:
            self.release()
            shard.staging.trim()
            refusal = self.ledger.take(worker, SLOTS, nbytes, share)
        return refusal

    @property
    def share(self) -> int:
        """Bytes of one member: what the model leaves, by the members there are."""
        members = 0 if self.shard is None else len(self.shard.members)
        return max(0, self.ledger.limit - self._model) // max(1, members)

    @property
    def member_calls(self) -> int:
        """Payload calls that one member may have: each may hold a whole message, of which the transport has a copy."""
        most, least = int(MEMBER_CALLS.value), int(LEAST_MEMBER_CALLS.value)
        return max(least, min(most, self.share // (2 * RECEIVED_BYTES)))

    def take_copy(self, nbytes: int) -> str | None:
        """Account for a copy of what the optimizer remembers; or why there is no room."""
        refusal = self.ledger.take(MODEL, COPY, nbytes)
        if refusal is not None:
            self.release()
            refusal = self.ledger.take(MODEL, COPY, nbytes)
        return refusal

    def give_copy(self, nbytes: int) -> None:
        """It is not needed any more."""
        self.ledger.give(MODEL, COPY, nbytes)

    def give_slots(self, worker: str) -> None:
        """Those of `worker` are free again."""
        self.ledger.put(worker, SLOTS, 0)

    @property
    def versions_beyond(self) -> int:
        """How many versions that were taken back would have to be given up by those who read them, for the total to
        be within the limit, and theirs within their share."""
        if self.shard is None or not self.shard.layout.nbytes:
            return 0
        if self.ledger.total > self.ledger.limit:
            self.release()
        nbytes = self.shard.layout.nbytes
        share = int(LENT_SHARE.value * max(0, self.ledger.limit - self._model))
        over = max(self.ledger.total - self.ledger.limit, len(self.shard.arena.lent) * nbytes - share)
        return max(0, -(-over // nbytes))


def silent_calls(limit: int) -> int:
    """Calls that may say nothing yet, under that memory limit."""
    most = int(STRANGERS_SHARE.value * limit) // RECEIVED_BYTES
    return max(int(LEAST_SILENT.value), min(int(SILENT.value), most))


def _refused(message: str) -> Refused:
    return Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, message)


def _said(needs: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {nbytes / MIB:.1f}" for kind, nbytes in needs.items())


def _for_each(needs: Mapping[str, int]) -> str:
    return f", and {sum(needs.values()) / MIB:.1f} for each worker ({_said(needs)})" if needs else ""
