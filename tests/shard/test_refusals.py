"""What is certain is finite, what is tried is what happens, and what is refused leaves no trace."""

from random import Random
from typing import Any

import numpy as np
import pytest

from psserver.optimizers import build
from psserver.policies import TensorParts
from psserver.shard import Shard
from psserver.shard_bounds import ShardBounds
from pswire.decisions import entries
from pswire.model.plan import VariableSpec, make_plan
from tests.repetitions import seeds

PLAN = make_plan([VariableSpec("w", (37,)), VariableSpec("mean", (5,), kind="state")], 2)
WORKERS = ("w0", "w1", "w2")
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd", "learning_rate": 0.5},
    {"name": "momentum", "learning_rate": 0.1, "weight_decay": 0.1},
    {"name": "dana-zero", "learning_rate": 0.1},
    {"name": "adam", "amsgrad": True},
    {"name": "adadelta", "learning_rate": 1.0},
    {"name": "rmsprop", "momentum": 0.9, "centered": True},
    {"name": "ftrl", "learning_rate": 0.1},
]
TENSORS = [
    TensorParts(),
    TensorParts(aggregator="median", knobs={"fewest": 1}),
    TensorParts(aggregator="trimmed-mean", knobs={"trim": 0}),
    TensorParts("taylor"),
    TensorParts("adaptive-taylor", knobs={"decay": 0.9, "epsilon": 1e-7}),
    TensorParts("gap-aware", knobs={"decay": 0.9, "epsilon": 1e-7}),
]
CASES = [
    (optimizer, tensors)
    for optimizer in OPTIMIZERS
    for tensors in TENSORS
    if optimizer["name"] != "dana-zero" or tensors.aggregator == "mean"
]


class Servers:
    """Two shards that execute a log."""

    def __init__(self, optimizer: dict[str, Any], tensors: TensorParts) -> None:
        made = build(optimizer)
        self.shards = [Shard(PLAN, server, made, versions=4, tensors=tensors) for server in range(2)]
        self.assurance = ShardBounds(tensors, made)
        self.folded: set[int] = set()
        self.compensates = bool(tensors.compensator)

    def record(self, entry: entries.Entry) -> None:
        order = entry.order(self.folded)
        for shard in self.shards:
            shard.execute(order)

    def push(self, ticket: int, draw: Random, largest: float) -> bool:
        """Numbers of which the largest is about that; whether the payload is ordinary everywhere."""
        ordinary = True
        for shard in self.shards:
            slot = shard.begin(ticket)
            size = slot.values.size
            payload = np.array([draw.uniform(-1, 1) for _ in range(size)], np.float64)
            payload[draw.randrange(size)] = draw.choice([-1.0, 1.0])
            with np.errstate(over="ignore"):
                payload = np.clip(payload * largest, -3.4e38, 3.4e38).astype(np.float32)
            assert shard.checks.copy_in(slot, payload, 0) is None
            assert shard.staging.finish(slot)
            ordinary = ordinary and slot.ordinary
        return ordinary

    def try_update(self, update: entries.Apply) -> tuple[bool, float]:
        found = [shard.try_update(update.update(self.folded)) for shard in self.shards]
        return all(finite for finite, _ in found), max(largest for _, largest in found)

    def held(self) -> list[tuple[str, bytes]]:
        """All arrays but staged payloads and what was summed."""
        return [
            (name, values.tobytes())
            for shard in self.shards
            for name, values in sorted(shard.state().arrays.items())
            if not name.startswith(("payload/", "update/"))
        ]

    @property
    def kept(self) -> int:
        """How many elements the newest update kept back."""
        return sum(shard.fact.kept for shard in self.shards if shard.fact is not None)

    def largest(self, version: int) -> float:
        """The largest magnitude in that version and in what the optimizer keeps."""
        return max(
            float(np.abs(values).max(initial=0.0))
            for shard in self.shards
            for name, values in shard.state().arrays.items()
            if name.startswith(("slot/", "memory/", f"version/{version}"))
        )


def contributed(
    servers: Servers, workers: list[str], draw: Random, base: int, last: int, wildness: float, scale: float
) -> tuple[list[entries.Part], bool]:
    """A commit of each worker, in tickets behind the `last`; and whether every payload is ordinary."""
    parts, ordinary = [], True
    factors = {worker: draw.choice([1.0, 1.0, 0.3]) for worker in workers}
    for ticket, worker in enumerate(workers, last + 1):
        servers.record(entries.Grant(worker, ticket, base))
        wild = draw.random() < wildness
        largest = draw.choice([1e6, 1e7, 1e19, 1e25, 3.4e38] if wild else [0.01, 1.0, 7.0])
        ordinary = servers.push(ticket, draw, largest) and ordinary
        servers.record(entries.Commit(worker, ticket, 0, 1, 0.0, 0.0))
        strength = draw.choice([0.0, 0.04, 2.0]) if servers.compensates else None
        factor = factors[worker]
        parts.append(entries.Part(ticket, worker, base, 0, factor * scale, factor, strength or None))
    return parts, ordinary


def called(made: dict[str, Any] | TensorParts) -> str:
    return f"{made.compensator}-{made.aggregator}" if isinstance(made, TensorParts) else str(made["name"])


@pytest.mark.parametrize(("optimizer", "tensors"), CASES, ids=called)
def test_any_run_of_updates(optimizer: dict[str, Any], tensors: TensorParts) -> None:
    asked = certain = refused = 0
    for seed in seeds(6, soak=200):
        draw = Random(f"{optimizer} {tensors} {seed}")
        servers, wildness = Servers(optimizer, tensors), draw.choice([0.05, 0.5])
        servers.record(entries.Join("w0", 0, 0))
        servers.record(entries.Initialise("w0", 1))
        first = servers.push(1, draw, draw.choice([0.1, 1.0, 1.0, 1e30]))
        servers.record(entries.Install("w0", 1))
        servers.assurance.installed(first)
        version, ticket = 0, 1
        for _ in range(25):
            workers = draw.sample(WORKERS, draw.randint(1, 3))
            scale = 1.0 if tensors.lists else 1 / len(workers)
            parts, ordinary = contributed(servers, workers, draw, version, ticket, wildness, scale)
            ticket += len(workers)
            before = servers.held()
            if tensors.compensator is None and not tensors.lists:
                # Some are summed early, as policies have it.
                for part in parts[: draw.randint(0, len(parts) - 1)]:
                    servers.record(entries.Fold(part.ticket, part.factor))
            update = entries.Apply(version + 1, scale, draw.choice([1.0, 0.5]), tuple(parts))
            if ordinary and servers.assurance.certain(update):
                certain += 1
                servers.record(update)
                assert not servers.kept
                version += 1
                continue
            asked += 1
            finite, largest = servers.try_update(update)
            assert servers.held() == before
            if finite:
                servers.record(update)
                assert not servers.kept
                version += 1
                servers.assurance.measured(largest)
                assert servers.largest(version) <= largest
                continue
            refused += 1
            assert copy_and_apply(servers, update) > 0
            servers.record(entries.Refuse(update.version, update.scale, update.lr_scale, update.parts))
            for part in parts:
                servers.record(entries.Drop(part.worker, part.ticket, 0, entries.NONFINITE))
            assert servers.held() == before
            assert not any(shard.staging.held for shard in servers.shards)
    assert asked and certain


def copy_and_apply(servers: Servers, update: entries.Apply) -> int:
    """Make the update on shards that were restored from the others' states; return how many elements it keeps back."""
    order, kept = update.update(servers.folded), 0
    for shard in servers.shards:
        other = Shard(PLAN, shard.layout.server, shard.optimizer, versions=4, tensors=shard.tensors)
        other.restore(shard.state())
        other.execute(order)
        assert all(np.isfinite(array).all() for array in other.state().arrays.values())
        assert other.fact is not None
        kept += other.fact.kept
    return kept
