"""The shard's reference: whole variables, every version kept for ever, a new array for every result.

It knows no servers, no buffers and no blocks; float32 in the order that the
orders prescribe. Shards must agree with it to the bit.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from psserver.optimizers import build
from psserver.shard import Apply, Fold, Hold, Install, Shard
from pswire.model.plan import Plan, VariableSpec, make_plan

RATE, FRICTION = 0.25, 0.9
MOMENTUM = {"name": "momentum", "learning_rate": RATE, "momentum": FRICTION}
SGD = {"name": "sgd", "learning_rate": RATE}

VARIABLES = (
    VariableSpec("kernel", (7, 3)),
    VariableSpec("bias", (5,)),
    VariableSpec("mean", (4, 2), kind="state"),
    VariableSpec("gain", ()),
    VariableSpec("count", (), kind="state"),
)

Arrays = list[np.ndarray]


def numbers(seed: int, variables: Sequence[VariableSpec] = VARIABLES) -> Arrays:
    """One array per variable."""
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(spec.shape).astype(np.float32) for spec in variables]


class Reference:
    """SGD with momentum on whole arrays."""

    def __init__(self, variables: Sequence[VariableSpec] = VARIABLES) -> None:
        self.variables = variables
        self.versions: list[Arrays] = []
        self.bases: dict[int, int] = {}
        self.payloads: dict[int, Arrays] = {}
        self.velocity: Arrays = [np.zeros(spec.shape, np.float32) for spec in variables]
        self.total: Arrays | None = None
        self.factors = 0.0

    def install(self, ticket: int) -> None:
        self.versions.append(self.payloads.pop(ticket))

    def fold(self, fold: Fold, at_work: int | None = None) -> None:
        """`at_work`: tickets; by default those that are open."""
        tickets = len(self.bases) if at_work is None else at_work
        terms = [self._term(i, g, fold, tickets) for i, g in enumerate(self.payloads.pop(fold.ticket))]
        self.release(fold.ticket)
        if self.total is None:
            self.total, self.factors = terms, fold.factor
        else:
            self.total = [total + term for total, term in zip(self.total, terms, strict=True)]
            self.factors += fold.factor

    def release(self, ticket: int) -> None:
        """The ticket is over."""
        self.bases.pop(ticket, None)
        self.payloads.pop(ticket, None)

    def _term(self, index: int, g: np.ndarray, fold: Fold, tickets: int) -> np.ndarray:
        """factor * g', with g' = g + lambda g g (x_now - x_base) for gradients (Zheng et al. 2017, eq. 10), and
        g' = w (x_base + g - x_now) for changes of state (Xie et al. 2019, algorithm 1)."""
        base = self.bases.get(fold.ticket, len(self.versions) - 1)
        staleness = len(self.versions) - 1 - base
        if staleness and self.variables[index].kind == "state":
            now, before = self.versions[-1][index], self.versions[base][index]
            g = (g + (before - now)) * np.float32(tickets / (tickets + staleness))
        if fold.compensation and self.variables[index].kind == "trainable":
            now, base = self.versions[-1][index], self.versions[self.bases[fold.ticket]][index]
            g = g + (now - base) * g * g * np.float32(fold.compensation)
        return g * np.float32(fold.factor)

    def apply(self, apply: Apply) -> None:
        at_work = len(self.bases)
        for part in apply.parts:
            self.fold(part, at_work)
        assert self.total is not None
        new = [self._step(i, x, apply) for i, x in enumerate(self.versions[-1])]
        self.versions.append(new)
        self.total = None

    def _step(self, index: int, x: np.ndarray, apply: Apply) -> np.ndarray:
        assert self.total is not None
        if self.variables[index].kind == "state":
            # The weighted mean of the deltas; nobody's opinion changes nothing.
            return x + self.total[index] / np.float32(self.factors) if self.factors else x.copy()
        rate = np.float32(RATE * apply.lr_scale)
        gradient = self.total[index] * np.float32(apply.scale)
        self.velocity[index] = self.velocity[index] * np.float32(FRICTION) - gradient * rate
        return np.asarray(x + self.velocity[index], np.float32)


# Verbs on real shards


def shards_of(
    servers: int,
    config: dict[str, object] = MOMENTUM,
    variables: Sequence[VariableSpec] = VARIABLES,
    **options: object,
) -> tuple[Plan, list[Shard]]:
    plan = make_plan(variables, servers)
    return plan, [Shard(plan, server, build(config), **options) for server in range(servers)]  # type: ignore[arg-type]


def stage(plan: Plan, shards: Iterable[Shard], ticket: int, arrays: Arrays) -> None:
    """A complete push to every shard."""
    for shard, flat in zip(shards, plan.scatter(arrays), strict=True):
        slot = shard.begin(ticket)
        slot.values[...] = flat
        assert shard.staging.finish(slot)


def install(plan: Plan, shards: Sequence[Shard], arrays: Arrays, ticket: int = 1) -> None:
    """Version 0."""
    for shard in shards:
        shard.execute(Hold(ticket, 0, initialise=True))
    stage(plan, shards, ticket, arrays)
    for shard in shards:
        shard.execute(Install(ticket))


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()
