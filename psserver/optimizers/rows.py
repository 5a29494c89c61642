"""Update rules for rows of sparse tables: what they remember per row, and one step of the rows that an update touches.

An elementwise rule runs its own formula on the touched rows. Under sgd and adagrad that is exact: a dense variable's
rows with a gradient of zero stay as they are, too. Others are lazy: momentum, rmsprop and adam would move or decay
absent rows in a dense variable, and ftrl would set them to zero; here absent rows rest. Adam's step count t is the
row's own number of updates (Monolith, Paddle), or with ``bias = "global"`` the version: a row born late then begins
with a step of (1 - beta_1) / sqrt(1 - beta_2) = 3.16 rates.

rowwise-adagrad and group-adagrad see a whole row, and add columns from left to right. group-adagrad computes in numpy.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from psserver.fast import ALONE, SWEEP_EVERY, Backend, RowPass, Variant
from psserver.fast import rows as kernels
from psserver.fast.rows import PassNumbers
from psserver.optimizers.blocks import TINY, Array
from psserver.optimizers.optimizer import Optimizer
from psserver.optimizers.reading import OptimizerError, knobs_read
from psserver.optimizers.registry import build
from psserver.optimizers.rule import Rule
from psserver.optimizers.rules.adam import Adam, corrections, last_correction
from psserver.optimizers.schedules import Constant, Schedule, read_schedule, schedule_config
from pswire.knobs import number, settings

EXACT: Final = ("sgd", "adagrad")
LAZY: Final = ("momentum", "rmsprop", "adam", "ftrl")
CLOCKS: Final = ("row", "global")
# Adam's corrections by the row's own number of updates are kept in arrays of at most this length.
_LONGEST: Final = 1 << 20
_NONE: Final = np.ones(1, np.float32)


@dataclass(frozen=True, slots=True)
class RowStep:
    """The numbers of one update. The gradient is ``g * factor * scale``; `version` is the one that it starts from."""

    version: int
    lr_scale: float
    factor: float
    scale: float


class RowOptimizer(ABC):
    """A rule with its schedule, for rows. Holds no arrays.

    `widths`: the numbers per row of each slot, 0 for as many as the row has. `initial`: each slot's first value.
    `one_pass`: `step` on rows where they lie, to be compiled; None if there is none.
    """

    widths: Mapping[str, int]
    initial: Mapping[str, float]
    one_pass: RowPass | None

    @property
    @abstractmethod
    def config(self) -> dict[str, object]:
        """All settings, defaults included; `rows_optimizer` reads them back as an equal rule."""

    @property
    @abstractmethod
    def variants(self) -> list[Variant]:
        """The loops that a step runs, to be compiled."""

    @abstractmethod
    def step(
        self,
        x: Array,
        g: Array,
        out: Array,
        state: Mapping[str, Array],
        counts: NDArray[np.uint32],
        numbers: RowStep,
        backend: Backend = ALONE,
    ) -> bool:
        """Write the new rows, [n, dim], to `out`. `state` ([n, width] by slot) advances in place; `g` is scratch.

        Return False if elements are kept back, because a number of theirs would not be finite: they keep what is in
        `state`, and have NaN in `out`. `counts`: the updates of each row before this one.
        """

    @abstractmethod
    def pass_numbers(self, numbers: RowStep) -> PassNumbers:
        """Return what `one_pass` computes with."""


class ElementRows(RowOptimizer):
    """An elementwise rule on touched rows, by the formula of the dense variables."""

    def __init__(self, optimizer: Optimizer, clock: str = "row") -> None:
        self._optimizer, self._clock = optimizer, clock
        self.widths = dict.fromkeys(optimizer.slots, 0)
        self.initial = {name: float(slot[0]) for name, slot in optimizer.init(1).items()}
        self.one_pass = self._one_pass()

    @property
    def by_row(self) -> bool:
        """Whether each row counts its steps itself."""
        return self._optimizer.name == "adam" and self._clock == "row"

    def _one_pass(self) -> RowPass | None:
        rule = self._optimizer.rule
        if not isinstance(rule, Rule) or self._optimizer.clip is not None:
            return None
        loop, scalars = rule.fused(np.float32(0), 1)
        if not self.by_row:
            return RowPass(loop, len(scalars), (0,) * len(self.widths))
        assert isinstance(rule, Adam)
        if rule.epsilon_outside or last_correction(rule.beta_1, rule.beta_2) > _LONGEST:
            return None
        spread, names = rule.loop_by(("alpha", "tiny"))
        return RowPass(spread, len(scalars), (0,) * len(self.widths), names.index("alpha"))

    def pass_numbers(self, numbers: RowStep) -> PassNumbers:
        optimizer, step = self._optimizer, numbers.version + 1
        rate, rule = optimizer.rate(numbers.version, numbers.lr_scale), optimizer.rule
        assert isinstance(rule, Rule)
        scalars = np.array(rule.fused(rate, step).scalars, np.float32)
        tiny, curves = TINY if step % SWEEP_EVERY == 0 else np.float32(0), (_NONE, _NONE)
        if self.by_row:
            assert isinstance(rule, Adam) and self.one_pass is not None
            scalars[self.one_pass.own], tiny = rate, TINY
            longest = int(last_correction(rule.beta_1, rule.beta_2))
            # A row has at most as many updates as there are versions.
            size = min(longest, (1 << step.bit_length()) - 1)
            curves = _curves(rule.beta_1, rule.beta_2, size)
        return PassNumbers(scalars, np.float32(numbers.factor), np.float32(numbers.scale), tiny, *curves)

    @property
    def config(self) -> dict[str, object]:
        clock: dict[str, object] = {"bias": self._clock} if self._optimizer.name == "adam" else {}
        return {**self._optimizer.config, **clock}

    @property
    def variants(self) -> list[Variant]:
        return self._optimizer.variants()

    def step(
        self,
        x: Array,
        g: Array,
        out: Array,
        state: Mapping[str, Array],
        counts: NDArray[np.uint32],
        numbers: RowStep,
        backend: Backend = ALONE,
    ) -> bool:
        if not self.by_row:
            return self._advance(self._optimizer, x, g, out, state, numbers, backend)
        # Rows of equal age share a step count, and all share the version's rate.
        rate = float(self._optimizer.rate(numbers.version, numbers.lr_scale))
        fixed = replace(self._optimizer, schedule=Constant(rate))
        order = np.argsort(counts, kind="stable")
        starts = [*np.flatnonzero(np.diff(counts[order], prepend=np.int64(-1))).tolist(), counts.size]
        own_x, own_g, new = x.take(order, axis=0), g.take(order, axis=0), np.empty_like(out)
        own = {name: slot.take(order, axis=0) for name, slot in state.items()}
        good = True
        for start, stop in pairwise(starts):
            part = slice(start, stop)
            at = replace(numbers, version=int(counts[order[start]]), lr_scale=1.0)
            slots = {name: slot[part] for name, slot in own.items()}
            good = self._advance(fixed, own_x[part], own_g[part], new[part], slots, at, backend) and good
        back = np.empty_like(order)
        back[order] = np.arange(order.size)
        for after, target in ((new, out), *((own[name], slot) for name, slot in state.items())):
            # Without `mode` numpy would write to a copy first.
            after.take(back, axis=0, out=target, mode="clip")
        return good

    def _advance(
        self,
        optimizer: Optimizer,
        x: Array,
        g: Array,
        out: Array,
        state: Mapping[str, Array],
        numbers: RowStep,
        backend: Backend,
    ) -> bool:
        return optimizer.advance(
            *(x.reshape(-1), g.reshape(-1), out.reshape(-1)),
            {name: slot.reshape(-1) for name, slot in state.items()},
            version=numbers.version,
            lr_scale=numbers.lr_scale,
            factor=numbers.factor,
            scale=numbers.scale,
            backend=backend,
        )


@lru_cache(maxsize=4)
def _curves(beta_1: float, beta_2: float, steps: int) -> tuple[Array, Array]:
    """Return Adam's two corrections at steps 0 (any) to `steps`."""
    found = np.ones((2, steps + 1), np.float32)
    for step in range(1, steps + 1):
        found[:, step] = corrections(beta_1, beta_2, step)
    return found[0], found[1]


@dataclass(frozen=True, slots=True)
class RowwiseAdagrad:
    """Adagrad with one sum per row: ``a += mean(g^2); x -= g * (rate / (sqrt(a) + epsilon))``; a starts at 0.

    FBGEMM's exact row-wise Adagrad (codegen/genscript/optimizers.py); Mudigere et al. (ISCA 2022), section 4.1. PERSIA
    and Paddle divide by the sum before adding to it; this rule divides by the sum after. No decay.
    """

    learning_rate: ClassVar[float] = 0.01
    initial: ClassVar[float] = 0.0

    epsilon: float = number(1e-8, "added to the root of the sum", above=0)

    def step(self, x: Array, g: Array, out: Array, a: Array, rate: np.float32) -> None:
        """Write new rows to `out`; `a` is [n]."""
        kernels.rowwise_adagrad(x, g, a, rate, np.float32(self.epsilon), out)


@dataclass(frozen=True, slots=True)
class GroupAdagrad:
    """Adagrad with one sum per row and a group lasso, which sets rows that earn little to exact zero.

    ::

        a += max(g^2);  r = rate / (beta + sqrt(a));  z = g - x / r
        x = 0 if norm(z) <= l, else -r z (1 - l / norm(z))

    with l = `lasso`. Monolith, runtime/hash_table/optimizer/group_adagrad_optimizer.cc; Ni et al. (2019), "Feature
    selection for Facebook feed ranking system via a group-sparsity-regularized training algorithm". No other decay. At
    rate 0 rows stay.
    """

    learning_rate: ClassVar[float] = 0.01
    initial: ClassVar[float] = 0.0

    beta: float = number(1.0, "added to the root of the sum", above=0)
    lasso: float = number(0.0, "norm up to which a row's pull towards zero wins", at_least=0)

    def step(self, x: Array, g: Array, out: Array, a: Array, rate: np.float32) -> None:
        """Write new rows to `out`; `a` is [n]."""
        a += np.square(g).max(axis=1)
        if rate == 0:
            out[...] = x
            return
        r = (rate / (np.float32(self.beta) + np.sqrt(a)))[:, None]
        z, lasso = g - x / r, np.float32(self.lasso)
        norm = np.sqrt(sum_of_squares(z))[:, None]
        out[...] = np.where(norm <= lasso, np.float32(0), -r * z * (np.float32(1) - lasso / norm))


def sum_of_squares(values: Array) -> Array:
    """Return the sum of squares of each row, columns added from left to right."""
    total: Array = np.square(values[:, 0])
    for column in range(1, values.shape[1]):
        total += np.square(values[:, column])
    return total


ROW_RULES: Final[Mapping[str, type[RowwiseAdagrad | GroupAdagrad]]] = {
    "rowwise-adagrad": RowwiseAdagrad,
    "group-adagrad": GroupAdagrad,
}


class WholeRows(RowOptimizer):
    """A rule that sees whole rows and keeps one number for each."""

    def __init__(self, name: str, rule: RowwiseAdagrad | GroupAdagrad, schedule: Schedule) -> None:
        self._name, self._rule = name, rule
        # The schedule's arithmetic, and its checks, are `Optimizer.rate`'s.
        self._rated = replace(build({"name": "sgd"}), schedule=schedule)
        self.widths, self.initial = {"accumulator": 1}, {"accumulator": rule.initial}
        self.one_pass = RowPass(None, 2, (1,)) if isinstance(rule, RowwiseAdagrad) else None

    def pass_numbers(self, numbers: RowStep) -> PassNumbers:
        assert isinstance(self._rule, RowwiseAdagrad)
        rate = self._rated.rate(numbers.version, numbers.lr_scale)
        scalars = np.array([rate, self._rule.epsilon], np.float32)
        factors = np.float32(numbers.factor), np.float32(numbers.scale)
        return PassNumbers(scalars, *factors, np.float32(0), _NONE, _NONE)

    @property
    def config(self) -> dict[str, object]:
        rate = schedule_config(self._rated.schedule)
        return {"name": self._name, "learning_rate": rate, **settings(self._rule)}

    @property
    def variants(self) -> list[Variant]:
        # Whole rows have kernels of their own.
        return []

    def step(
        self,
        x: Array,
        g: Array,
        out: Array,
        state: Mapping[str, Array],
        counts: NDArray[np.uint32],
        numbers: RowStep,
        backend: Backend = ALONE,
    ) -> bool:
        rate = self._rated.rate(numbers.version, numbers.lr_scale)
        with np.errstate(all="ignore"):
            for factor in (numbers.factor, numbers.scale):
                if factor != 1.0:
                    np.multiply(g, np.float32(factor), out=g)
            a = state["accumulator"].reshape(-1)
            before = a.copy()
            self._rule.step(x, g, out, a, rate)
        if all(math.isfinite(kernels.largest(each)) for each in (out.reshape(-1), a)):
            return True
        bad = ~(np.isfinite(a) & np.isfinite(out).all(axis=1))
        out[bad], a[bad] = np.nan, before[bad]
        return False


def rows_optimizer(config: Mapping[str, object] | None, job: Optimizer) -> RowOptimizer:
    """Return the rule of a table: of its own `config`, or without one of the job's optimizer.

    Raises OptimizerError for a rule that rows cannot have, with the reason.
    """
    table = dict(job.config if config is None else config)
    name = table.get("name")
    if isinstance(name, str) and name in ROW_RULES:
        rule = ROW_RULES[name]
        schedule = read_schedule(table.pop("learning_rate", rule.learning_rate))
        del table["name"]
        made = knobs_read(rule, table, f"optimizer {name}", also=("name", "learning_rate"))
        return WholeRows(name, made, schedule)
    clock = table.pop("bias", "row") if name == "adam" else "row"
    if clock not in CLOCKS:
        raise OptimizerError(f"optimizer adam: bias must be one of {', '.join(CLOCKS)}, got {clock!r}")
    optimizer = build(table)
    _check(optimizer)
    return ElementRows(optimizer, str(clock))


def _check(optimizer: Optimizer) -> None:
    known = (*EXACT, *LAZY, *ROW_RULES)
    if optimizer.name not in known:
        raise OptimizerError(
            f"optimizer {optimizer.name!r} has no meaning for rows that most updates do not touch; expected one of "
            f"{', '.join(known)} for a table"
        )
    if optimizer.rule.weight_decay:
        raise OptimizerError(
            f"optimizer {optimizer.name!r}: weight_decay shrinks every row at every update, also those that no batch "
            "has, and a table moves only touched rows; expected weight_decay 0 for a table"
        )
    if optimizer.clip is not None and optimizer.clip.knob != "clipvalue":
        raise OptimizerError(
            f"{optimizer.clip.knob} of optimizer {optimizer.name!r} needs the norm of a whole variable, and a server "
            "has some rows of a table; expected clipvalue, or clipping by the workers"
        )
