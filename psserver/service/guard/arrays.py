"""What a shard's arrays cost: what the model needs whoever trains it, what a member needs, and what is held beyond."""

from collections.abc import Iterator

from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.service.guard.ledger import MODEL, Held
from psserver.shard import Shard
from psserver.shard.compensators import build_compensator
from pswire.model.plan import ShardLayout

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
