"""More learning rates as functions of the version: polynomial, of the inverse of time, cosines that restart.

As in `psserver.optimizers.schedules`: Keras' names and formulas, in float32, powers rounded from float64.
"""

import math
from dataclasses import dataclass

import numpy as np

from pswire.knobs import flag, integer, number


@dataclass(frozen=True, slots=True)
class Polynomial:
    """``(initial - end) * (1 - version / decay_steps) ** power + end``, then `end`; with power 1 a straight line.

    cycle: instead of staying at `end` the rate goes up again, to the curve of the next multiple of `decay_steps`.
    keras.optimizers.schedules.PolynomialDecay.
    """

    initial_learning_rate: float = number(meaning="the first rate", at_least=0)
    decay_steps: int = integer(meaning="versions until the last rate", at_least=1)
    end_learning_rate: float = number(0.0001, "the last rate", at_least=0)
    power: float = number(1.0, "exponent of what is left of the way", above=0)
    cycle: bool = flag(False, "go on, over the next multiple of decay_steps")

    def rate(self, version: int) -> np.float32:
        step, steps = np.float32(version), np.float32(self.decay_steps)
        if self.cycle:
            steps = steps * max(np.float32(1), np.ceil(step / steps))
        left = np.float32(1) - min(step, steps) / steps
        first, last = np.float32(self.initial_learning_rate), np.float32(self.end_learning_rate)
        factor = np.float32(math.pow(left, np.float32(self.power)))
        return np.float32((first - last) * factor + last)


@dataclass(frozen=True, slots=True)
class InverseTime:
    """``initial / (1 + decay_rate * version / decay_steps)``; staircase: of the rounded-down quotient.

    keras.optimizers.schedules.InverseTimeDecay.
    """

    initial_learning_rate: float = number(meaning="the first rate", at_least=0)
    decay_steps: int = integer(meaning="versions in which the divisor grows by decay_rate", at_least=1)
    decay_rate: float = number(meaning="growth of the divisor per decay_steps versions", at_least=0)
    staircase: bool = flag(False, "change only at whole multiples of decay_steps")

    def rate(self, version: int) -> np.float32:
        quotient = np.float32(version) / np.float32(self.decay_steps)
        if self.staircase:
            quotient = np.floor(quotient)
        # A divisor that is too large for float32 gives a rate of 0.
        with np.errstate(over="ignore"):
            divisor = np.float32(1) + np.float32(self.decay_rate) * quotient
        return np.float32(np.float32(self.initial_learning_rate) / divisor)


@dataclass(frozen=True, slots=True)
class CosineRestarts:
    """Half a cosine from the first rate down to `alpha` times it, and again, each `t_mul` times as long as the one
    before and from `m_mul` times as high.

    keras.optimizers.schedules.CosineDecayRestarts; Loshchilov & Hutter (ICLR 2017), section 3. Keras finds the number
    of a restart by a logarithm in float32, which may be one version off; here it is exact.
    """

    initial_learning_rate: float = number(meaning="the first rate", at_least=0)
    first_decay_steps: int = integer(meaning="versions of the first cosine", at_least=1)
    t_mul: float = number(2.0, "length of a cosine, by that of the one before", at_least=1)
    m_mul: float = number(1.0, "height of a cosine, by that of the one before", at_least=0, at_most=1)
    alpha: float = number(0.0, "the last rate as a fraction of the first", at_least=0, at_most=1)

    def rate(self, version: int) -> np.float32:
        restarts, fraction = self._place(version / self.first_decay_steps)
        height = np.float32(math.pow(np.float32(self.m_mul), restarts))
        cosine = np.float32(math.cos(np.float32(math.pi) * fraction))
        decayed = np.float32(0.5) * height * (np.float32(1) + cosine)
        alpha = np.float32(self.alpha)
        return np.float32(
            np.float32(self.initial_learning_rate) * ((np.float32(1) - alpha) * decayed + alpha)
        )

    def _place(self, done: float) -> tuple[int, np.float32]:
        """The number of restarts so far, and how much of the present cosine is over, 0 to 1."""
        growth = self.t_mul - 1
        if not growth:
            return math.floor(done), np.float32(done - math.floor(done))

        def begin(restart: int) -> float:
            return (math.pow(self.t_mul, restart) - 1) / growth

        restart = math.floor(math.log1p(done * growth) / math.log(self.t_mul))
        # Logarithms differ in their last bits from machine to machine.
        while begin(restart + 1) <= done:
            restart += 1
        while begin(restart) > done:
            restart -= 1
        return restart, np.float32((done - begin(restart)) / math.pow(self.t_mul, restart))
