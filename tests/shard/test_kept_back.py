"""Elements that would not be finite are kept back: exactly those, on any number of servers; all else advances."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from psserver.optimizers import build, names
from psserver.optimizers.rows import EXACT, LAZY
from psserver.optimizers.rule import WholeRule
from psserver.policies import TensorParts
from psserver.shard import Apply, Fold, Hold, Install, Order, Seal, Shard, copied
from psserver.shard.mixing import weight
from pswire.model.initial_rows import initial_rows
from pswire.model.plan import VariableSpec, make_plan
from pswire.model.tables import TableSpec, split, unique
from pswire.transport.blocks import INT4, INT8, TOP_K, BlockCodec
from tests.optimizers.twin import evaluated
from tests.promises import promise
from tests.repetitions import seeds

IDS, DIM = 12, 3
KEYS, WHERE = unique(np.arange(IDS))
SPEC = TableSpec("table", DIM, "uniform", (-1.0, 1.0), 5)
VARIABLES = (
    VariableSpec("kernel", (6, 40)),
    VariableSpec("twin", (IDS, DIM)),
    VariableSpec("mean", (9,), kind="state"),
)
TRAINED = 6 * 40 + IDS * DIM
KNOBS = {"decay": 0.9, "epsilon": 1e-7}
COMPENSATED = [
    TensorParts("taylor"),
    *(TensorParts(name, knobs=KNOBS) for name in ("adaptive-taylor", "gap-aware")),
]
LISTED = [
    TensorParts(aggregator="median", knobs={"fewest": 1}),
    TensorParts(aggregator="trimmed-mean", knobs={"trim": 0}),
]
Case = tuple[dict[str, Any], TensorParts, BlockCodec | None]
CASES: list[Case] = [
    *(({"name": name}, TensorParts(), None) for name in names()),
    *(
        ({"name": name, "weight_decay": 0.1}, TensorParts(), None)
        for name in ("momentum", "adamw", "ftrl", "lamb")
    ),
    ({"name": "adam", "amsgrad": True, "clipvalue": 1.0}, TensorParts(), None),
    *(
        ({"name": name}, tensors, None)
        for name in ("sgd", "momentum", "adam")
        for tensors in (*COMPENSATED, *LISTED)
    ),
    *(({"name": name}, TensorParts(), codec) for name in ("sgd", "adam") for codec in (INT8, INT4, TOP_K)),
]


def called(made: Any) -> str:
    if isinstance(made, TensorParts):
        return f"{made.compensator}-{made.aggregator}"
    return "-".join(map(str, made.values())) if isinstance(made, dict) else getattr(made, "name", "whole")


class Servers:
    """The shards of one plan, which take the same orders."""

    def __init__(self, case: Case, rate: float, servers: int) -> None:
        config, tensors, self.codec = case
        self.optimizer = build({**config, "learning_rate": rate})
        self.tables = (SPEC,) if self._has_table(config, tensors) else ()
        self.plan = make_plan(VARIABLES, servers, self.tables)
        self.tensors = tensors
        self.shards = [
            Shard(self.plan, s, self.optimizer, versions=30, staging=8, tensors=tensors, deltas=self.codec)
            for s in range(servers)
        ]

    def _has_table(self, config: dict[str, Any], tensors: TensorParts) -> bool:
        known = config["name"] in (*EXACT, *LAZY) and not {"weight_decay", "clipvalue"} & config.keys()
        return known and tensors == TensorParts() and self.codec is None

    def order(self, order: Order) -> None:
        for shard in self.shards:
            shard.execute(order)

    def push(self, ticket: int, arrays: list[np.ndarray]) -> None:
        """The table gets the gradient of its twin."""
        for shard, flat in zip(self.shards, self.plan.scatter(arrays), strict=True):
            slot = shard.begin(ticket)
            slot.values[...] = flat
            if self.tables and ticket:
                part = split(KEYS, len(self.shards))[shard.layout.server]
                rows = np.empty((IDS, DIM), np.float32)
                rows[WHERE] = arrays[1]
                slot.rows = [(KEYS[part], rows[part])]
            assert shard.staging.finish(slot)
            shard.execute(Seal(ticket))

    def flat(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """One array of all servers' parts, in the order of the variables; of trained elements only, the rest is 0."""
        wide = [
            np.zeros(shard.layout.elements, part.dtype)
            for shard, part in zip(self.shards, parts, strict=True)
        ]
        for into, part in zip(wide, parts, strict=True):
            into[: part.size] = part
        return np.concatenate([each.reshape(-1) for each in self.plan.gather(wide)])

    def held(self) -> dict[str, np.ndarray]:
        """All numbers that last, by name."""
        newest = [shard.arena.values(shard.version) for shard in self.shards]
        found = {"weights": self.flat([each for each in newest if each is not None])}
        if self.codec is not None:
            found["exact"] = self.flat(
                [shard.stream.exact for shard in self.shards if shard.stream is not None]
            )
        every = [shard._updater for shard in self.shards]
        for name in every[0].slots:
            found[f"slot {name}"] = self.flat([each.slots[name] for each in every])
        for name in every[0].memory:
            if name not in every[0].constants:
                found[f"memory {name}"] = self.flat([each.memory[name] for each in every])
        return found

    def rows(self) -> np.ndarray:
        parts = split(KEYS, len(self.shards))
        read = [s.read_rows([KEYS[p]], s.version)[0] for s, p in zip(self.shards, parts, strict=True)]
        return np.concatenate(read)[WHERE]

    @property
    def kept(self) -> int:
        return sum(sum(shard.fact.kept.values()) for shard in self.shards)


def drawn(draw: Random, wild: float, scale: float = 1.0) -> list[np.ndarray]:
    """Numbers for all variables, of which a few are huge."""

    def one() -> float:
        sign = draw.choice([-1, 1])
        return sign * (
            draw.choice([1e10, 1e19, 1e25, 3.4e38]) if draw.random() < wild else draw.random() * scale
        )

    return [np.array([one() for _ in range(spec.size)], np.float32).reshape(spec.shape) for spec in VARIABLES]


class Twin:
    """Whole arrays, one operation after the other: which elements an update makes that are not finite."""

    def __init__(self, servers: Servers, version: int) -> None:
        self.servers, self.version, self.held = servers, version, servers.held()
        self.optimizer, self.tensors = servers.optimizer, servers.tensors
        shard = servers.shards[0]
        self.constants = {name: shard._updater.memory[name][0].copy() for name in shard._updater.constants}

    def slots(self) -> dict[str, np.ndarray]:
        return {name: self.held[f"slot {name}"][:TRAINED].copy() for name in self.optimizer.slots}

    def kept(self, apply: Apply, parts: list[tuple[np.ndarray, np.ndarray, int]], tickets: int) -> np.ndarray:
        """Return a mask of the elements. `parts`: payload, the version it started from, and its age."""
        start = self.held.get("exact", self.held["weights"])
        x, state = start[:TRAINED], start[TRAINED:]
        gradients, changes, memory = [], [], {}
        for name, values in self.held.items():
            if name.startswith("memory"):
                memory[name.split()[1]] = values[:TRAINED].copy()
        with np.errstate(all="ignore"):
            for part, (payload, base, age) in zip(apply.parts, parts, strict=True):
                g, change = payload[:TRAINED].copy(), payload[TRAINED:].copy()
                if age:
                    change += np.where(state == base[TRAINED:], 0, base[TRAINED:] - state)
                changes.append(change * np.float32(weight(tickets, age)))
                if part.compensation:
                    away = self.held["weights"][:TRAINED] - base[:TRAINED]
                    g = self._compensated(g, away, np.float32(part.compensation), memory, self.slots())
                gradients.append(g)
            kept = np.zeros(start.size, bool)
            for values in memory.values():
                kept[:TRAINED] |= ~np.isfinite(values)
            kept[:TRAINED] |= self._moved(apply, x, gradients, kept[:TRAINED])
            factors = [np.float32(part.factor) for part in apply.parts]
            if self.tensors.lists:
                new = state + _aggregate(self.tensors, changes)
            else:
                total = _summed(changes, factors)
                new = state + total / np.float32(sum(abs(part.factor) for part in apply.parts))
            kept[TRAINED:] = ~np.isfinite(new)
        return kept

    def _compensated(
        self,
        g: np.ndarray,
        away: np.ndarray,
        strength: Any,
        memory: dict[str, np.ndarray],
        slots: dict[str, Any],
    ) -> np.ndarray:
        if self.tensors.compensator == "taylor":
            return g + away * g * g * strength  # type: ignore[no-any-return]
        decay, gain = np.float32(KNOBS["decay"]), np.float32(1 - KNOBS["decay"])
        epsilon, tiny = np.float32(KNOBS["epsilon"]), np.finfo(np.float32).tiny
        step = self.optimizer.last_step(slots)
        u = g if step is None or self.tensors.compensator == "adaptive-taylor" else step
        mean = memory["mean_square"] * decay + u * u * gain
        memory["mean_square"] = mean = np.where(mean < tiny, np.float32(0), mean)
        if self.tensors.compensator == "adaptive-taylor":
            return g + away * g * g * strength / np.sqrt(mean + epsilon)  # type: ignore[no-any-return]
        known = self.constants
        known["weight"] = known["weight"] * decay + gain
        known["rate_max"] = max(known["rate_max"], self.optimizer.rate(self.version))
        unit = known["rate_max"] if step is None else np.float32(1)
        size = np.sqrt(mean / known["weight"]) * unit + max(known["rate_max"] * epsilon, tiny)
        return g / (np.abs(away) * strength / size + np.float32(1))  # type: ignore[no-any-return]

    def _moved(self, apply: Apply, x: np.ndarray, gradients: list[np.ndarray], bad: np.ndarray) -> np.ndarray:
        """Return which elements the optimizer would make not finite; `bad` are already."""
        optimizer, factors = self.optimizer, [np.float32(part.factor) for part in apply.parts]
        scale, step = np.float32(apply.scale), self.version + 1
        rate, rule = optimizer.rate(self.version, apply.lr_scale), optimizer.rule
        if self.tensors.lists:
            g = _aggregate(self.tensors, [g * f for g, f in zip(gradients, factors, strict=True)]) * scale
        else:
            g = _summed(gradients, factors) * scale
        if isinstance(rule, WholeRule):
            return self._whole(rule, x, g, rate, step)
        if optimizer.clip is not None:
            g = np.clip(g, -np.float32(1), np.float32(1))
        known = {"x": x, "g": g, **self.slots(), **rule._scalars(rate, step), "zero": np.float32(0)}
        found = evaluated(rule._formula(), known, x.size)
        return bad | ~np.logical_and.reduce([np.isfinite(each) for each in found.values()])

    def _whole(self, rule: WholeRule, x: np.ndarray, g: np.ndarray, rate: Any, step: int) -> np.ndarray:
        kept, at = np.zeros(x.size, bool), 0
        decay = np.float32(rule.weight_decay) if rule.weight_decay else None
        for spec in VARIABLES[:2]:
            part = slice(at, at + spec.size)
            at += spec.size
            slots = {name: each[part].copy() for name, each in self.slots().items()}
            out = np.empty(spec.size, np.float32)
            rule.step_whole(
                x[part], g[part].copy(), out, slots, spec.shape, rate=rate, step=step, decay=decay
            )
            kept[part] = not all(np.isfinite(each).all() for each in (out, *slots.values()))
        return kept


def _summed(values: list[np.ndarray], factors: list[Any]) -> np.ndarray:
    total, pending = values[0], factors[0]
    for each, factor in zip(values[1:], factors[1:], strict=True):
        total, pending = total * pending + each * factor, np.float32(1)
    return total * pending  # type: ignore[no-any-return]


def _aggregate(tensors: TensorParts, values: list[np.ndarray]) -> np.ndarray:
    rows = np.sort(np.stack(values), axis=0)
    if tensors.aggregator == "median":
        middle = len(rows) // 2
        return rows[middle] if len(rows) % 2 else (rows[middle - 1] + rows[middle]) / np.float32(2)  # type: ignore[no-any-return]
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total / np.float32(len(rows))  # type: ignore[no-any-return]


def published(servers: Servers, before: np.ndarray, exact: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the version that the change to `exact` makes, on one server, and which elements keep their old values."""
    codec, layout, kept = servers.codec, servers.plan.shards[0], np.zeros(before.size, bool)
    assert codec is not None
    coded = np.arange(before.size) < 6 * 40
    while True:
        with np.errstate(all="ignore"):
            change = np.where(kept, 0, np.where(coded, exact - before, exact)).astype(np.float32)
        more = coded & ~np.isfinite(change)
        if not more.any():
            decoded = np.empty_like(change)
            codec.decoder(layout, decoded).feed(codec.encoder(layout).encode(1, change).data)
            with np.errstate(all="ignore"):
                new = np.where(coded, before + decoded, exact)
            more = ~np.isfinite(new)
        if not more.any():
            return new, kept
        kept |= more


class Job:
    """A run of updates on one, two and three servers at once, and its dumb twin."""

    def __init__(self, case: Case, seed: int) -> None:
        self.draw = Random(f"{case} {seed}")
        self.case, self.rate = case, self.draw.choice([1e-3, 1.0, 1e10, 1e30])
        self.wild = (0.01, 0.1, 0.0)[seed % 3]
        whole = build(case[0]).whole
        self.all = [Servers(case, self.rate, count) for count in ((1,) if whole else (1, 2, 3))]
        first = drawn(self.draw, self.wild)
        # The twin begins as the table's rows do.
        first[1] = initial_rows(SPEC, KEYS)[WHERE]
        self.order(Hold(0, 0, initialise=True, worker="w0"))
        for servers in self.all:
            servers.push(0, first)
        self.order(Install(0))
        self.version, self.last, self.kept = 0, 0, 0
        # Worker -> ticket, the version it was granted, and what that was.
        self.open: dict[str, tuple[int, int, np.ndarray]] = {}

    def order(self, order: Order) -> None:
        for servers in self.all:
            servers.order(order)

    def update(self) -> None:
        one, draw = self.all[0], self.draw
        for worker in ("w0", "w1", "w2"):
            if worker not in self.open:
                self.last += 1
                self.order(Hold(self.last, self.version, worker=worker))
                self.open[worker] = (self.last, self.version, one.held()["weights"])
        workers = draw.sample(sorted(self.open), draw.randint(1, 3))
        parts, folds, payloads = [], [], {}
        for worker in workers:
            ticket, version, base = self.open.pop(worker)
            arrays = drawn(draw, self.wild)
            for servers in self.all:
                servers.push(ticket, arrays)
            payloads[ticket] = np.concatenate([each.reshape(-1) for each in arrays])
            parts.append((payloads[ticket], base, self.version - version))
            strength = draw.choice([0.0, 0.04, 2.0]) if one.tensors.compensator else 0.0
            folds.append(Fold(ticket, draw.choice([1.0, 0.3, 2.0]), strength))
        scale = 1.0 if one.tensors.lists else 1 / len(workers)
        self.version += 1
        apply = Apply(self.version, scale, draw.choice([1.0, 0.5]), tuple(folds))
        twin, before = Twin(one, self.version - 1), one.held()
        kept = twin.kept(apply, parts, 3)
        saved = copied(one.shards[0].state())
        self.order(apply)
        self._compare(apply, kept, before)
        if not isinstance(one.optimizer.rule, WholeRule) and one.codec is None:
            self._compare_tame(apply, kept, saved)

    def _compare(self, apply: Apply, kept: np.ndarray, before: dict[str, np.ndarray]) -> None:
        one = self.all[0]
        held = one.held()
        assert all(np.isfinite(each).all() for each in held.values())
        for name, values in before.items():
            if name != "weights" or one.codec is None:
                assert values[kept].tobytes() == held[name][kept].tobytes(), name
        every = kept
        if one.codec is not None:
            new, stays = published(one, before["weights"], held["exact"])
            assert (new == held["weights"]).all()
            every = kept | stays
        expected = int(every.sum())
        if one.tables:
            # Each row was touched by every update, so it has the bits of a dense variable.
            part = slice(6 * 40, TRAINED)
            assert one.rows().reshape(-1).tobytes() == held["weights"][part].tobytes()
            expected += int(kept[part].sum())
        for servers in self.all:
            assert servers.kept == expected, (servers.kept, expected)
            assert all(
                a.tobytes() == b.tobytes()
                for a, b in zip(servers.held().values(), held.values(), strict=True)
            )
            if one.tables:
                assert servers.rows().tobytes() == one.rows().tobytes()
        self.kept += expected

    def _compare_tame(self, apply: Apply, kept: np.ndarray, saved: Any) -> None:
        """Without the gradients of what was kept back, all else moves to the same bits."""
        tame = Servers(self.case, self.rate, 1)
        arrays = dict(saved.arrays)
        for part in apply.parts:
            payload = arrays[f"payload/{part.ticket}"] = arrays[f"payload/{part.ticket}"].copy()
            payload[: kept.size][kept] = 0
        tame.shards[0].restore(replace(saved, arrays=arrays))
        tame.order(apply)
        other, held = tame.held(), self.all[0].held()
        for name, values in held.items():
            assert values[~kept].tobytes() == other[name][~kept].tobytes(), name


@promise(
    "Elements that would not be finite keep their old values, exactly counted, and everything else advances."
)
@pytest.mark.parametrize(("config", "tensors", "codec"), CASES, ids=called)
def test_any_run_of_updates(config: dict[str, Any], tensors: TensorParts, codec: BlockCodec | None) -> None:
    kept = 0
    for seed in seeds(3, soak=100, fast=3):
        job = Job((config, tensors, codec), seed)
        for _ in range(5):
            job.update()
        kept += job.kept
    assert kept
