"""What an optimizer is to this package: slots, their initial value, and one formula."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from psserver.optimizers.backend import Loop
from psserver.optimizers.blocks import Array, Kernel
from psserver.optimizers.formulas import Formula, Scalars, Value
from psserver.optimizers.magnitudes import Bounds, Magnitudes
from pswire.knobs import number

Values = Mapping[str, Value]


class Fused(NamedTuple):
    """One update as a fused loop: its arguments between (x, g, out, slots) and (factor, scale, tiny)."""

    loop: Loop
    scalars: tuple[np.float32, ...]


class Rule(ABC):
    """One optimization rule: a frozen dataclass whose fields are its knobs.

    `learning_rate` is the default of Keras. A rule holds no arrays and no counters; all that it remembers is in the
    slots. Each element's update depends on that element alone (others: `psserver.optimizers.whole`).
    """

    __slots__ = ("_known",)
    _known: Formula

    learning_rate: ClassVar[float]
    # A gradient moves slots of its worker's own; all others share one set.
    per_worker: ClassVar[bool] = False
    # Slots that are never below zero, by name.
    positive: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """Names of the arrays it keeps per element, as Keras names them."""

    @property
    def initial(self) -> float | Mapping[str, float]:
        """What every slot is filled with at first; by name where they differ, 0 for one that is not named."""
        return 0.0

    @property
    def weight_decay(self) -> float:
        """Part of each weight that an update takes away, times the rate; 0 is none."""
        return 0.0

    @property
    def step_slot(self) -> str | None:
        """The slot that holds the last step, learning rate and all; None where there is none."""
        return None

    @abstractmethod
    def step(self, x: Value, g: Value, s: Values) -> Values:
        """The formula: new values of "x" and of each slot, from the weights (decayed already), the gradient and `s`.

        `s` has the slots, the `scalars`, "rate" and "x", the weights before decay.
        """

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        """The numbers, none below zero, that update number `step` (the first is 1) at `rate` computes with.

        The names are the same for all updates. "rate" is there without being named.
        """
        return {}

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        """The update number `step` (the first is 1) at learning rate `rate`, for any block, in numpy."""
        return self._formula().kernel(self._scalars(rate, step))

    def fused(self, rate: np.float32, step: int) -> Fused:
        """The same update as a loop; bit-equal to `kernel`."""
        formula, scalars = self._formula(), self._scalars(rate, step)
        return Fused(formula.loop, tuple([scalars[name] for name in formula.scalars]))

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        """How large the numbers of that update can become: see `psserver.optimizers.magnitudes`."""
        return self._formula().bounds(self._scalars(np.float32(rate), step), g, b)

    def _scalars(self, rate: np.float32, step: int) -> Scalars:
        scalars = {"rate": rate, **self.scalars(rate, step)}
        if self.weight_decay:
            scalars["decay"] = np.float32(self.weight_decay)
        return scalars

    def _formula(self) -> Formula:
        try:
            return self._known
        except AttributeError:
            # Equal rules have one formula, and each has it at hand: to hash a rule takes as long as its scalars.
            object.__setattr__(self, "_known", _formula(self))
            return self._known


@lru_cache(maxsize=256)
def _formula(rule: Rule) -> Formula:
    names, name = tuple(rule._scalars(np.float32(1), 1)), type(rule).__name__.lower()
    return Formula(name, rule.slots, names, rule.step, decays=bool(rule.weight_decay), positive=rule.positive)


def decay_knob(default: float = 0.0) -> Any:
    """The knob `weight_decay`: decoupled weight decay, as every optimizer of Keras has it.

    Loshchilov & Hutter (ICLR 2019): the update starts from ``x - x * weight_decay * rate``, and the
    gradient does not see it. Keras decays by the scheduled rate, so `lr_scale` scales the decay too.
    """
    return number(default, "part of each weight lost per update, times the rate", at_least=0)


def decayed(x: Array, rate: np.float32, decay: np.float32 | None, scratch: Array) -> Array:
    """What a rule on whole variables starts from: `x` itself, or `scratch` with the decayed weights.

    ``x * decay * rate`` in this order: Keras rounds after each product.
    """
    if decay is None:
        return x
    np.multiply(x, decay, out=scratch)
    np.multiply(scratch, rate, out=scratch)
    return np.subtract(x, scratch, out=scratch)
