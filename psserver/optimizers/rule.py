"""The interface of an update rule: slots, their initial values, and one formula.

A `Rule` is elementwise, so a variable may lie on several servers. A `WholeRule` needs each variable whole on one
server, for its norm or its rows and columns; a job whose plan splits one is refused (`Optimizer.check_whole`). It runs
in numpy, in one thread, variable by variable, block by block. It sums in float64: numpy's pairwise summation within a
block, then block after block in order. Sums depend on the numbers alone, so replays and restored runs have the same
bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from psserver.fast import Loop
from psserver.optimizers.blocks import Array
from psserver.optimizers.formulas import Formula, Scalars, Value
from pswire.knobs import number

Values = Mapping[str, Value]


class Fused(NamedTuple):
    """One update as a fused loop, with its arguments between (x, g, out, slots) and (factor, scale, tiny)."""

    loop: Loop
    scalars: tuple[np.float32, ...]


class Rule(ABC):
    """One optimization rule: a frozen dataclass whose fields are its knobs.

    `learning_rate` is Keras' default. A rule holds no arrays and no counters; all that it remembers is in the slots.
    Each element's update depends on that element alone (for other rules see `WholeRule`).
    """

    __slots__ = ("_known",)
    _known: Formula

    learning_rate: ClassVar[float]

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """The names of the per-element arrays, as Keras names them."""

    @property
    def initial(self) -> float | Mapping[str, float]:
        """The initial value of every slot, or values by slot name; slots without a name start at 0."""
        return 0.0

    @property
    def weight_decay(self) -> float:
        """The fraction of each weight that an update takes away, times the rate; 0 is none."""
        return 0.0

    @property
    def step_slot(self) -> str | None:
        """The slot that holds the last step (learning rate included), or None."""
        return None

    @abstractmethod
    def step(self, x: Value, g: Value, s: Values) -> Values:
        """Return new values of "x" and of each slot: the formula.

        `x` are the weights after decay, `g` the gradient. `s` has the slots, the `scalars`, "rate", and "x", the
        weights before decay.
        """

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        """Return the numbers, none below zero, that update number `step` (from 1) at `rate` computes with.

        The names are the same for all updates. "rate" is always there and need not be named.
        """
        return {}

    def fused(self, rate: np.float32, step: int) -> Fused:
        """Return update number `step` (from 1) at learning rate `rate` as a loop."""
        formula, scalars = self._formula(), self._scalars(rate, step)
        return Fused(formula.loop, tuple([scalars[name] for name in formula.scalars]))

    def loop_by(self, names: tuple[str, ...]) -> tuple[Loop, tuple[str, ...]]:
        """Return the loop for elements that have these scalars of their own, and the names of all scalars in order."""
        formula = self._formula()
        return formula.loop_by(names), formula.scalars

    def _scalars(self, rate: np.float32, step: int) -> Scalars:
        scalars = {"rate": rate, **self.scalars(rate, step)}
        if self.weight_decay:
            scalars["decay"] = np.float32(self.weight_decay)
        return scalars

    def _formula(self) -> Formula:
        try:
            return self._known
        except AttributeError:
            # Equal rules share a formula. Each keeps a reference: hashing a rule takes as long as its scalars.
            object.__setattr__(self, "_known", _formula(self))
            return self._known


@lru_cache(maxsize=256)
def _formula(rule: Rule) -> Formula:
    names, name = tuple(rule._scalars(np.float32(1), 1)), type(rule).__name__.lower()
    return Formula(name, rule.slots, names, rule.step, decays=bool(rule.weight_decay))


class WholeRule(ABC):
    """A rule with `step_whole` in place of the elementwise `step`.

    Slots are as large as the arena here too; the rule uses each variable's part of a slot as it likes.
    """

    __slots__ = ()

    learning_rate: ClassVar[float]
    slots: ClassVar[tuple[str, ...]]
    # Why parts of a variable are not enough, for error messages.
    needs: ClassVar[str]
    initial: ClassVar[float] = 0.0
    step_slot: ClassVar[str | None] = None
    weight_decay: float

    @abstractmethod
    def step_whole(
        self,
        x: Array,
        g: Array,
        out: Array,
        state: Mapping[str, Array],
        shape: tuple[int, ...],
        *,
        rate: np.float32,
        step: int,
        decay: np.float32 | None,
    ) -> None:
        """Compute update number `step` (from 1) of one variable of `shape`; flat arrays of at least one element.

        Reads `x`, leaves the new values in `out`, advances `state`; `g` is scratch afterwards.
        """


class VariablePart(NamedTuple):
    """A whole variable: elements [start, stop) of an arena."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


def decay_knob(default: float = 0.0) -> Any:
    """Declare the knob `weight_decay`: decoupled weight decay, as every Keras optimizer has it.

    Loshchilov & Hutter (ICLR 2019): the update starts from ``x - x * weight_decay * rate``, and the gradient does not
    see the decay. Keras decays by the scheduled rate, so `lr_scale` scales the decay too.
    """
    return number(default, "part of each weight lost per update, times the rate", at_least=0)


def decayed(x: Array, rate: np.float32, decay: np.float32 | None, scratch: Array) -> Array:
    """Return the weights that a whole-variable rule starts from: `x` itself, or the decayed weights in `scratch`.

    The product is ``x * decay * rate`` in this order: Keras rounds after each multiplication.
    """
    if decay is None:
        return x
    np.multiply(x, decay, out=scratch)
    np.multiply(scratch, rate, out=scratch)
    return np.subtract(x, scratch, out=scratch)
