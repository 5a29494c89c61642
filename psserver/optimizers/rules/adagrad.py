"""Adagrad: ``a' = a + g*g``, ``x' = x - rate * g / sqrt(a' + epsilon)``.

Duchi, Hazan & Singer (JMLR 2011), the diagonal form; keras.optimizers.Adagrad, where epsilon is inside the root.
Bit-equal to Keras. epsilon_outside: ``sqrt(a') + epsilon``, as in torch.optim.Adagrad.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.formulas import Scalars, Value, root
from psserver.optimizers.rule import Rule, Values, decay_knob
from pswire.knobs import flag, number


@dataclass(frozen=True, slots=True)
class Adagrad(Rule):
    """Rates that shrink where gradients have been large."""

    learning_rate: ClassVar[float] = 0.001
    slots: ClassVar[tuple[str, ...]] = ("accumulator",)

    initial_accumulator_value: float = number(0.1, "initial sum of squares", at_least=0)
    epsilon: float = number(1e-7, "added to the sum of squares under the root", above=0)
    weight_decay: float = decay_knob()
    epsilon_outside: bool = flag(False, "add epsilon to the root instead of under it")

    @property
    def initial(self) -> float:
        return self.initial_accumulator_value

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        return {"epsilon": np.float32(self.epsilon)}

    def step(self, x: Value, g: Value, s: Values) -> Values:
        total = s["accumulator"] + g * g
        divisor = root(total, s["epsilon"], outside=self.epsilon_outside)
        return {"accumulator": total, "x": x - g * s["rate"] / divisor}
