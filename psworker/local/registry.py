"""From the name and numbers that came with the answer to Join to a rule."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from psworker.local.elastic import Elastic
from psworker.local.inner import AdamW, Sgd
from psworker.local.rule import Plain, Rule
from psworker.local.slim import DanaSlim
from psworker.local.steps import LocalSteps

# What is done where nothing else is said.
PLAIN = "gradient"
"""The name of the plain rule: one gradient per ticket."""

Knobs = Mapping[str, float]
Trainable = tuple[int, ...]


class LocalRuleError(ValueError):
    """A rule or a number that this worker does not know or cannot use."""


@dataclass(frozen=True, slots=True)
class Range:
    """Of a knob. `whole` numbers only; `open`: the least itself is none."""

    least: float = 0.0
    below: float = math.inf
    whole: bool = False
    open: bool = False

    def __contains__(self, value: object) -> bool:
        assert isinstance(value, float)
        above = value > self.least if self.open else value >= self.least
        return above and value < self.below and (not self.whole or value == int(value))

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        bounds = f"{'above' if self.open else 'of at least'} {self.least:g}"
        return f"{kind} {bounds}" + (f" and below {self.below:g}" if math.isfinite(self.below) else "")


_STEPS, _RATE, _DECAY = Range(1, whole=True), Range(open=True), Range(below=1)


@dataclass(frozen=True, slots=True)
class Kind:
    knobs: Mapping[str, Range]
    make: Callable[[Trainable, Knobs], Rule]


def _local_sgd(trainable: Trainable, knobs: Knobs) -> Rule:
    return LocalSteps(trainable, int(knobs["steps"]), Sgd(knobs["learning_rate"]))


def _local_adamw(trainable: Trainable, knobs: Knobs) -> Rule:
    inner = {name: value for name, value in knobs.items() if name != "steps"}
    return LocalSteps(trainable, int(knobs["steps"]), AdamW(**inner))


def _elastic(trainable: Trainable, knobs: Knobs) -> Rule:
    return Elastic(trainable, int(knobs["steps"]), knobs["alpha"], Sgd(knobs["learning_rate"]))


_ADAMW = {"weight_decay": Range(), "beta_1": _DECAY, "beta_2": _DECAY, "epsilon": _RATE}

KINDS: Mapping[str, Kind] = {
    PLAIN: Kind({}, lambda trainable, knobs: Plain(trainable)),
    "local-sgd": Kind({"steps": _STEPS, "learning_rate": _RATE}, _local_sgd),
    "local-adamw": Kind({"steps": _STEPS, "learning_rate": _RATE, **_ADAMW}, _local_adamw),
    "elastic": Kind({"steps": _STEPS, "learning_rate": _RATE, "alpha": Range(open=True)}, _elastic),
    "dana-slim": Kind({"momentum": _DECAY}, lambda trainable, knobs: DanaSlim(trainable, knobs["momentum"])),
}


def build(name: str, knobs: Knobs, trainable: Sequence[int]) -> Rule:
    """The rule `name`; `trainable`: how many elements of each server's payload are trained.

    An empty name is the plain rule. Raises LocalRuleError for an unknown name,
    missing or unknown knobs, and numbers out of range.
    """
    kind = KINDS.get(name or PLAIN)
    if kind is None:
        raise LocalRuleError(
            f"expected a local rule that this worker knows ({', '.join(KINDS)}), got {name!r}: "
            "are servers and workers of the same release?"
        )
    if set(knobs) != set(kind.knobs):
        raise LocalRuleError(
            f"local rule {name}: expected the knobs {', '.join(kind.knobs) or 'none'}, "
            f"got {', '.join(sorted(knobs)) or 'none'}: are servers and workers of the same release?"
        )
    values = {knob: float(value) for knob, value in knobs.items()}
    for knob, value in values.items():
        if not math.isfinite(value) or value not in kind.knobs[knob]:
            raise LocalRuleError(f"local rule {name}: {knob} is {value:g}; expected {kind.knobs[knob]}")
    return kind.make(tuple(trainable), values)
