"""Update rules for rows of sparse tables: what they remember per row, and one pass over the rows of an update.

An elementwise rule runs its own formula on the touched rows. Under sgd and adagrad that is exact: a dense variable's
rows with a gradient of zero stay as they are, too. Others are lazy: momentum, rmsprop and adam would move or decay
absent rows in a dense variable, and ftrl would set them to zero; here absent rows rest. Adam's step count t is the
row's own number of updates (Monolith, Paddle): by the version, a row born late would begin with a step of
(1 - beta_1) / sqrt(1 - beta_2) = 3.16 rates.

rowwise-adagrad sees a whole row, and adds columns from left to right.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Final

import numpy as np

from psserver.fast import SWEEP_EVERY, RowPass
from psserver.fast.rows import PassNumbers
from psserver.optimizers.blocks import TINY, Array
from psserver.optimizers.optimizer import Optimizer
from psserver.optimizers.reading import OptimizerError, knobs_read
from psserver.optimizers.registry import build
from psserver.optimizers.rule import Rule
from psserver.optimizers.rules.adam import Adam, corrections, last_correction
from psserver.optimizers.schedules import Schedule, read_schedule, schedule_config
from pswire.knobs import number, settings

EXACT: Final = ("sgd", "adagrad")
LAZY: Final = ("momentum", "rmsprop", "adam", "ftrl")
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
    `one_pass`: one step on rows where they lie, to be compiled. Elements are kept back if a number of theirs would not
    be finite.
    """

    widths: Mapping[str, int]
    initial: Mapping[str, float]
    one_pass: RowPass

    @property
    @abstractmethod
    def config(self) -> dict[str, object]:
        """All settings, defaults included; `rows_optimizer` reads them back as an equal rule."""

    @abstractmethod
    def pass_numbers(self, numbers: RowStep) -> PassNumbers:
        """Return what `one_pass` computes with."""


class ElementRows(RowOptimizer):
    """An elementwise rule on touched rows, by the formula of the dense variables."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.widths = dict.fromkeys(optimizer.slots, 0)
        self.initial = {name: float(slot[0]) for name, slot in optimizer.init(1).items()}
        self.one_pass = self._one_pass()

    @property
    def by_row(self) -> bool:
        """Whether each row counts its steps itself."""
        return self._optimizer.name == "adam"

    def _one_pass(self) -> RowPass:
        rule = self._optimizer.rule
        assert isinstance(rule, Rule)
        loop, scalars = rule.fused(np.float32(0), 1)
        if not self.by_row:
            return RowPass(loop, len(scalars), (0,) * len(self.widths))
        assert isinstance(rule, Adam)
        if rule.epsilon_outside or last_correction(rule.beta_1, rule.beta_2) > _LONGEST:
            raise OptimizerError(
                "optimizer adam: rows count their own steps, which works with Keras' formula (epsilon_outside = false) "
                "and beta_2 up to 0.99998; expected these for a table"
            )
        spread, names = rule.loop_by(("alpha", "tiny"))
        return RowPass(spread, len(scalars), (0,) * len(self.widths), names.index("alpha"))

    def pass_numbers(self, numbers: RowStep) -> PassNumbers:
        optimizer, step = self._optimizer, numbers.version + 1
        rate, rule = optimizer.rate(numbers.version, numbers.lr_scale), optimizer.rule
        assert isinstance(rule, Rule)
        scalars = np.array(rule.fused(rate, step).scalars, np.float32)
        tiny, curves = TINY if step % SWEEP_EVERY == 0 else np.float32(0), (_NONE, _NONE)
        if self.by_row:
            assert isinstance(rule, Adam)
            scalars[self.one_pass.own], tiny = rate, TINY
            longest = int(last_correction(rule.beta_1, rule.beta_2))
            # A row has at most as many updates as there are versions.
            size = min(longest, (1 << step.bit_length()) - 1)
            curves = _curves(rule.beta_1, rule.beta_2, size)
        return PassNumbers(scalars, np.float32(numbers.factor), np.float32(numbers.scale), tiny, *curves)

    @property
    def config(self) -> dict[str, object]:
        return self._optimizer.config


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

    epsilon: float = number(1e-8, "added to the root of the sum", above=0)


class RowwiseRows(RowOptimizer):
    """Row-wise Adagrad with its schedule, which keeps one number for each row."""

    name: ClassVar[str] = "rowwise-adagrad"

    def __init__(self, rule: RowwiseAdagrad, schedule: Schedule) -> None:
        self._rule = rule
        # The schedule's arithmetic, and its checks, are `Optimizer.rate`'s.
        self._rated = replace(build({"name": "sgd"}), schedule=schedule)
        self.widths, self.initial = {"accumulator": 1}, {"accumulator": 0.0}
        self.one_pass = RowPass(None, 2, (1,))

    def pass_numbers(self, numbers: RowStep) -> PassNumbers:
        rate = self._rated.rate(numbers.version, numbers.lr_scale)
        scalars = np.array([rate, self._rule.epsilon], np.float32)
        factors = np.float32(numbers.factor), np.float32(numbers.scale)
        return PassNumbers(scalars, *factors, np.float32(0), _NONE, _NONE)

    @property
    def config(self) -> dict[str, object]:
        rate = schedule_config(self._rated.schedule)
        return {"name": self.name, "learning_rate": rate, **settings(self._rule)}


def rows_optimizer(config: Mapping[str, object] | None, job: Optimizer) -> RowOptimizer:
    """Return the rule of a table: of its own `config`, or without one of the job's optimizer.

    Raises OptimizerError for a rule that rows cannot have, with the reason.
    """
    table = dict(job.config if config is None else config)
    name = table.get("name")
    if name == RowwiseRows.name:
        schedule = read_schedule(table.pop("learning_rate", 0.01))
        del table["name"]
        made = knobs_read(RowwiseAdagrad, table, f"optimizer {name}", also=("name", "learning_rate"))
        return RowwiseRows(made, schedule)
    optimizer = build(table)
    _check(optimizer)
    return ElementRows(optimizer)


def _check(optimizer: Optimizer) -> None:
    known = (*EXACT, *LAZY, RowwiseRows.name)
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
    if optimizer.clip is not None:
        raise OptimizerError(
            f"{optimizer.clip.knob} of optimizer {optimizer.name!r} is for dense variables; expected a table with an "
            "optimizer of its own, or clipping by the workers"
        )
