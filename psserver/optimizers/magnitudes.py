"""How large the numbers can become that one update leaves behind: bounds that hold whatever the gradient's numbers are.

`after` takes bounds on the magnitude of the gradient, of the weights and of every slot, and gives those after one
update, with the largest that any intermediate result has. All follow from the formulas in the rules' files by
|a + b| <= |a| + |b|, and from three facts:

- a running mean ``m + (g - m) (1 - beta)`` lies between m and g, so it is within the larger one's magnitude;
- a sum of squares is not negative, so that a root of it with epsilon is at least epsilon's share;
- rounding to float32 changes a result by 2**-24 of it at most, and an update has fewer than 32 operations in a row:
  `ROUNDING` makes up for them. Below the least normal float32 results are only closer to zero, which matters
  for divisors alone: those that may be so small count as zero, and the bound is infinite.

A bound that is infinite, or beyond `LIMIT`, says that nobody knows. Far below the largest float32 (2**128), the limit
leaves room for sums of two.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from psserver.optimizers.blocks import TINY
from psserver.optimizers.rule import Rule
from psserver.optimizers.rules.adadelta import Adadelta
from psserver.optimizers.rules.adafactor import Adafactor
from psserver.optimizers.rules.adagrad import Adagrad
from psserver.optimizers.rules.adam import Adam, step_size
from psserver.optimizers.rules.adamax import Adamax
from psserver.optimizers.rules.delayed_nesterov import DelayedNesterov
from psserver.optimizers.rules.ftrl import Ftrl
from psserver.optimizers.rules.lamb import Lamb
from psserver.optimizers.rules.lion import Lion
from psserver.optimizers.rules.momentum import Momentum
from psserver.optimizers.rules.nadam import Nadam
from psserver.optimizers.rules.nesterov import Nesterov
from psserver.optimizers.rules.rmsprop import RMSprop
from psserver.optimizers.rules.sgd import SGD
from psserver.optimizers.whole import WholeRule

LIMIT: Final = 2.0**100
ROUNDING: Final = 1 + 2.0**-18
# Divisors below it may be rounded to zero, or lose most of their digits.
LEAST: Final = 2.0**-120
# The least float32 above zero.
SMALLEST: Final = 2.0**-149
# A norm is at most that many times the largest element: the root of the most elements that a plan has.
NORM: Final = 2.0**20

Magnitudes = Mapping[str, float]
"""Bounds by name: "x" for the weights, and every slot."""

AnyRule = Rule | WholeRule

_Bound = Callable[[AnyRule, float, int, float, Magnitudes], tuple[dict[str, float], float]]


def after(
    rule: AnyRule, rate: np.float32, step: int, gradient: float, before: Magnitudes
) -> dict[str, float] | None:
    """Bounds after update number `step` at `rate`, by a gradient within `gradient`; None where nobody knows."""
    for kind, bound in _BOUNDS:
        if isinstance(rule, kind):
            try:
                found, peak = bound(rule, float(rate), step, gradient, before)
            except OverflowError:
                return None
            grown = {name: value * ROUNDING for name, value in found.items()}
            # NaN is not below anything.
            return grown if all(value <= LIMIT for value in (*grown.values(), peak * ROUNDING)) else None
    return None


def _over(value: float, divisor: float) -> float:
    return value / divisor if divisor > LEAST else math.inf


def _start(rule: AnyRule, rate: float, x: float) -> tuple[float, float]:
    """What the update starts from, with decay or (variables that are left out) without; and the largest on the way."""
    decay = rule.weight_decay
    return x * max(1.0, abs(1.0 - decay * rate)), x * (1.0 + decay) * (1.0 + rate)


def _sgd(rule: AnyRule, rate: float, step: int, g: float, b: Magnitudes) -> tuple[dict[str, float], float]:
    start, peak = _start(rule, rate, b["x"])
    return {"x": start + g * rate}, max(peak, g)


def _momentum(
    rule: AnyRule, rate: float, step: int, g: float, b: Magnitudes
) -> tuple[dict[str, float], float]:
    assert isinstance(rule, Momentum)
    start, peak = _start(rule, rate, b["x"])
    velocity = b["momentum"] * rule.momentum + g * rate
    ahead = velocity * rule.momentum + g * rate if isinstance(rule, Nesterov) else velocity
    return {"x": start + ahead, "momentum": velocity}, max(peak, g)


def _delayed(
    rule: AnyRule, rate: float, step: int, g: float, b: Magnitudes
) -> tuple[dict[str, float], float]:
    assert isinstance(rule, DelayedNesterov)
    total = b["period_sum"] + g * rate
    velocity = max(b["momentum"], b["momentum"] * rule.momentum + total)
    # What the velocity weighs is at most 1.
    return {"x": b["x"] + velocity + g * rate, "momentum": velocity, "period_sum": total}, g


def _adam(rule: AnyRule, rate: float, step: int, g: float, b: Magnitudes) -> tuple[dict[str, float], float]:
    assert isinstance(rule, Adam)
    start, peak = _start(rule, rate, b["x"])
    alpha = float(step_size(np.float32(rate), rule.beta_1, rule.beta_2, step))
    found = {"momentum": max(b["momentum"], g), "velocity": max(b["velocity"], g * g)}
    if rule.amsgrad:
        found["velocity_hat"] = max(b["velocity_hat"], found["velocity"])
    moved = found["momentum"] * alpha
    found["x"] = start + _over(moved, rule.epsilon)
    return found, max(peak, g * g + b["velocity"], g + b["momentum"], moved)


def _nadam(rule: AnyRule, rate: float, step: int, g: float, b: Magnitudes) -> tuple[dict[str, float], float]:
    assert isinstance(rule, Nadam)
    start, peak = _start(rule, rate, b["x"])
    scalars = [float(scalar) for scalar in rule.scalars(np.float32(rate), step)]
    ahead, rest_ahead, fresh, rest, spread, epsilon = scalars[3:]
    mean, square = max(b["momentum"], g), max(b["velocity"], g * g)
    moved = _over(mean * ahead, rest_ahead) + _over(g * fresh, rest)
    found = {"momentum": mean, "velocity": square, "x": start + _over(moved * rate, epsilon)}
    return found, max(peak, g * g + b["velocity"], g + b["momentum"], moved, _over(square, spread))


def _adamax(rule: AnyRule, rate: float, step: int, g: float, b: Magnitudes) -> tuple[dict[str, float], float]:
    assert isinstance(rule, Adamax)
    start, peak = _start(rule, rate, b["x"])
    mean, norm = max(b["momentum"], g), max(b["norm"], g)
    # As the rule has it: 1 - beta_1 ** step, rounded.
    rest = 1.0 - float(np.float32(math.pow(np.float32(rule.beta_1), step)))
    found = {"momentum": mean, "norm": norm, "x": start + _over(mean * rate, rule.epsilon * rest)}
    return found, max(peak, g + b["momentum"], mean * rate)


def _adagrad(
    rule: AnyRule, rate: float, step: int, g: float, b: Magnitudes
) -> tuple[dict[str, float], float]:
    assert isinstance(rule, Adagrad)
    start, peak = _start(rule, rate, b["x"])
    total = b["accumulator"] + g * g
    x = start + _over(g * rate, math.sqrt(rule.epsilon) if rule.epsilon > LEAST else 0.0)
    return {"x": x, "accumulator": total}, max(peak, g * rate)


def _adadelta(
    rule: AnyRule, rate: float, step: int, g: float, b: Magnitudes
) -> tuple[dict[str, float], float]:
    """The gradient is at most 1 / sqrt(1 - rho) times the root below it, unless its square is lost to rounding:
    below 2**-60 / sqrt(1 - rho) it is small enough whatever the root."""
    assert isinstance(rule, Adadelta)
    start, peak = _start(rule, rate, b["x"])
    if not (rule.epsilon > LEAST and 1 - rule.rho > 2.0**-24):
        return {"x": math.inf}, math.inf
    least, gain = math.sqrt(rule.epsilon), 1 - rule.rho
    ratio = min(g / least, max(1.01 / math.sqrt(gain), 2.0**-60 / math.sqrt(gain) / least))
    deltas = b["accumulated_delta_var"]
    moved = math.sqrt(deltas + rule.epsilon) * ratio
    found = {
        "accumulated_grad": b["accumulated_grad"] * rule.rho + g * g * gain,
        "accumulated_delta_var": deltas * rule.rho + moved * moved * gain,
        "x": start + moved * rate,
    }
    return found, max(peak, g * g, math.sqrt(deltas + rule.epsilon) * g, moved * moved)


def _rmsprop(
    rule: AnyRule, rate: float, step: int, g: float, b: Magnitudes
) -> tuple[dict[str, float], float]:
    """Centered, the difference of two near numbers may cancel with epsilon down to the least number there is."""
    assert isinstance(rule, RMSprop)
    start, peak = _start(rule, rate, b["x"])
    found = {"velocity": b["velocity"] * rule.rho + g * g * (1 - rule.rho)}
    spread = rule.epsilon if rule.epsilon > LEAST else 0.0
    if rule.centered:
        mean = found["average_gradient"] = b["average_gradient"] * rule.rho + g * (1 - rule.rho)
        peak, spread = max(peak, mean * mean + found["velocity"]), min(spread, SMALLEST)
    moved = g * rate / math.sqrt(spread) if spread else math.inf
    if rule.momentum > 0:
        moved = found["momentum"] = b["momentum"] * rule.momentum + moved
    return {**found, "x": start + moved}, max(peak, g * g, g * rate)


def _lion(rule: AnyRule, rate: float, step: int, g: float, b: Magnitudes) -> tuple[dict[str, float], float]:
    start, peak = _start(rule, rate, b["x"])
    return {"x": start + rate, "momentum": b["momentum"] + g}, max(peak, b["momentum"] + g)


def _ftrl(rule: AnyRule, rate: float, step: int, g: float, b: Magnitudes) -> tuple[dict[str, float], float]:
    """The sum of squares never falls below what it starts from. Its root grows by |g| at most, and by rounding."""
    assert isinstance(rule, Ftrl)
    if rate == 0:
        return dict(b), 0.0
    start, peak = _start(rule, rate, b["x"])
    total = b["accumulator"] + g * g
    root = math.sqrt(total)
    pull = _over(g + root * 2.0**-20, rate)
    shrinkage = 2 * rule.l2_shrinkage_regularization_strength
    linear = b["linear"] + g + start * (shrinkage + pull)
    clipped = linear + rule.l1_regularization_strength
    least = rule.initial_accumulator_value
    divisor = _over(math.sqrt(least), rate) if least > LEAST else 0.0
    on_the_way = (
        peak,
        pull,
        _over(root, rate),
        clipped,
        rule.beta / (2 * rate),
        rule.l2_regularization_strength,
    )
    return {"accumulator": total, "linear": linear, "x": _over(clipped, divisor)}, max(*on_the_way)


def _lamb(rule: AnyRule, rate: float, step: int, g: float, b: Magnitudes) -> tuple[dict[str, float], float]:
    """A step is no longer than the rate times the variable, or times u where the variable is zero."""
    assert isinstance(rule, Lamb)
    start, peak = _start(rule, rate, b["x"])
    found = {"momentum": max(b["momentum"], g), "velocity": max(b["velocity"], g * g)}
    mean = _over(found["momentum"], float(rule.rest(rule.beta_1, step)))
    square = _over(found["velocity"], float(rule.rest(rule.beta_2, step)))
    u = _over(mean, rule.epsilon)
    found["x"] = start + rate * max(start * NORM, u)
    return found, max(peak, g * g + b["velocity"], g + b["momentum"], square, u)


def _adafactor(
    rule: AnyRule, rate: float, step: int, g: float, b: Magnitudes
) -> tuple[dict[str, float], float]:
    """u, clipped, has a norm of at most `clip_threshold` times the root of the number of elements."""
    assert isinstance(rule, Adafactor)
    start, peak = _start(rule, rate, b["x"])
    square = g * g + rule.epsilon_1
    rows, columns = max(b["rows"], square), max(b["columns"], square)
    moved = max(rule.epsilon_2, start) * rate * rule.clip_threshold * NORM
    # A row's mean is at most the number of rows times the mean of all.
    product = columns * NORM * NORM
    u = g / math.sqrt(float(TINY))
    return {"rows": rows, "columns": columns, "x": start + moved}, max(peak, rows, product, u)


# The first kind that fits: those that derive from another come with it.
_BOUNDS: Final[tuple[tuple[type[AnyRule], _Bound], ...]] = (
    (SGD, _sgd),
    (Momentum, _momentum),
    (DelayedNesterov, _delayed),
    (Adam, _adam),
    (Nadam, _nadam),
    (Adamax, _adamax),
    (Adagrad, _adagrad),
    (Adadelta, _adadelta),
    (RMSprop, _rmsprop),
    (Lion, _lion),
    (Ftrl, _ftrl),
    (Lamb, _lamb),
    (Adafactor, _adafactor),
)
