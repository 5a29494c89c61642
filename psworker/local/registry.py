"""From the name and numbers that came with the answer to Join to a rule."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pswire.domains import Domain
from pswire.knobs import Knob, KnobError
from psworker.local.dana_slim import DanaSlim
from psworker.local.elastic import Elastic
from psworker.local.inner import AdamW, Sgd
from psworker.local.local_steps import LocalSteps
from psworker.local.rule import Plain, Rule

# The default rule.
PLAIN = "gradient"
"""The name of the plain rule: one gradient per ticket."""

Knobs = Mapping[str, float]
Trainable = tuple[int, ...]


class LocalRuleError(ValueError):
    """A rule or a number that this worker does not know or cannot use."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A local rule: its knobs, all required because a policy names every one, and how it is made of them."""

    meaning: str
    knobs: tuple[Knob, ...]
    make: Callable[[Trainable, Knobs], Rule]


def _local_sgd(trainable: Trainable, knobs: Knobs) -> Rule:
    return LocalSteps(trainable, int(knobs["steps"]), Sgd(knobs["learning_rate"]))


def _local_adamw(trainable: Trainable, knobs: Knobs) -> Rule:
    inner = {name: value for name, value in knobs.items() if name != "steps"}
    return LocalSteps(trainable, int(knobs["steps"]), AdamW(**inner))


def _elastic(trainable: Trainable, knobs: Knobs) -> Rule:
    return Elastic(trainable, int(knobs["steps"]), knobs["alpha"], Sgd(knobs["learning_rate"]))


def _decay(name: str, meaning: str) -> Knob:
    return Knob(name, Domain("number", at_least=0, below=1), meaning)


_SGD = (
    Knob("steps", Domain("integer", at_least=1), "batches of a ticket"),
    Knob("learning_rate", Domain("number", above=0), "of the worker's steps"),
)
_ADAMW = (
    *_SGD,
    Knob("weight_decay", Domain("number", at_least=0), "part of each weight lost per step, times the rate"),
    _decay("beta_1", "decay of the mean of gradients"),
    _decay("beta_2", "decay of the mean of squared gradients"),
    Knob("epsilon", Domain("number", above=0), "added to the root of the mean square"),
)
_ALPHA = Knob("alpha", Domain("number", above=0), "how far worker and centre move to each other")

KINDS: Mapping[str, Kind] = {
    PLAIN: Kind("one batch, one gradient", (), lambda trainable, knobs: Plain(trainable)),
    "local-sgd": Kind("steps of SGD; pushes how far they led", _SGD, _local_sgd),
    "local-adamw": Kind("steps of AdamW, whose moments stay; pushes how far they led", _ADAMW, _local_adamw),
    "elastic": Kind("steps of SGD on weights of its own, tied to the centre", (*_SGD, _ALPHA), _elastic),
    "dana-slim": Kind(
        "one gradient with momentum of its own",
        (_decay("momentum", "decay of the worker's velocity"),),
        lambda trainable, knobs: DanaSlim(trainable, knobs["momentum"]),
    ),
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
    known = [knob.name for knob in kind.knobs]
    if set(knobs) != set(known):
        raise LocalRuleError(
            f"local rule {name}: expected the knobs {', '.join(known) or 'none'}, "
            f"got {', '.join(sorted(knobs)) or 'none'}: are servers and workers of the same release?"
        )
    try:
        values = {
            knob.name: knob.check(f"local rule {name}", _number(knobs[knob.name])) for knob in kind.knobs
        }
    except KnobError as error:
        raise LocalRuleError(str(error)) from error
    return kind.make(tuple(trainable), values)


def _number(value: float) -> float:
    """All numbers travel as floats; a whole one is an int again."""
    return int(value) if math.isfinite(value) and value == int(value) else value
