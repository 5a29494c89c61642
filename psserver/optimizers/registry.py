"""The built-in optimizers: configuration in, `Optimizer` out."""

from collections.abc import Mapping
from dataclasses import dataclass

from psserver.optimizers.errors import OptimizerError
from psserver.optimizers.optimizer import Optimizer
from psserver.optimizers.rule import Rule
from psserver.optimizers.rules.adagrad import Adagrad
from psserver.optimizers.rules.adam import Adam
from psserver.optimizers.rules.adamw import AdamW
from psserver.optimizers.rules.dana_zero import DanaZero
from psserver.optimizers.rules.delayed_nesterov import DelayedNesterov
from psserver.optimizers.rules.momentum import Momentum
from psserver.optimizers.rules.nesterov import Nesterov
from psserver.optimizers.rules.rmsprop import RMSprop
from psserver.optimizers.rules.sgd import SGD
from psserver.optimizers.schedules import SCHEDULES, knobs_read, read_schedule, unknown
from pswire.domains import Domain
from pswire.knobs import Knob, knobs_of

RULES: Mapping[str, type[Rule]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "nesterov": Nesterov,
    "delayed-nesterov": DelayedNesterov,
    "dana-zero": DanaZero,
    "adam": Adam,
    "adamw": AdamW,
    "adagrad": Adagrad,
    "rmsprop": RMSprop,
}


@dataclass(frozen=True, slots=True)
class Description:
    """What ``--help`` says about an optimizer or a schedule; `str()` is that text."""

    name: str
    summary: str
    knobs: tuple[Knob, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.summary}", *(f"  {knob}" for knob in self.knobs)])


def names() -> tuple[str, ...]:
    """The known optimizers."""
    return tuple(RULES)


def schedule_names() -> tuple[str, ...]:
    """The known learning-rate schedules."""
    return tuple(SCHEDULES)


def build(config: Mapping[str, object]) -> Optimizer:
    """The optimizer that `config` describes.

    ``{"name": "adam", "learning_rate": 0.001, "beta_1": 0.9}``; all but "name"
    have Keras's defaults. "learning_rate" is a number or a table such as
    ``{"schedule": "cosine", "initial_learning_rate": 0.1, "decay_steps": 1000}``.

    Raises OptimizerError for an unknown name, knob or schedule (naming the
    nearest known one) and for a value out of range (naming the range).
    """
    table = dict(config)
    if "name" not in table:
        raise OptimizerError(f"optimizer: name is missing; give one of {', '.join(RULES)}")
    name = table.pop("name")
    made = _known(name)
    schedule = read_schedule(table.pop("learning_rate", made.learning_rate))
    for key in table:
        homes = [other for other, rule in RULES.items() if key in _knob_names(rule)]
        if homes and name not in homes:
            raise OptimizerError(
                f"optimizer {name} has no knob {key!r}; it has {', '.join(_knob_names(made))}. "
                f"{key!r} is a knob of {', '.join(homes)}"
            )
    rule = knobs_read(made, table, f"optimizer {name}", also=("name", "learning_rate"))
    return Optimizer(str(name), rule, schedule)


def describe(name: str) -> Description:
    """The knobs of an optimizer, with defaults. Raises OptimizerError for an unknown name."""
    made = _known(name)
    domain = Domain("number", at_least=0)
    rate = Knob("learning_rate", domain, "size of a step; or a table with a schedule", made.learning_rate)
    return Description(name, _first_line(made), (rate, *knobs_of(made)))


def describe_schedule(name: str) -> Description:
    """The knobs of a schedule, with defaults. Raises OptimizerError for an unknown name."""
    if name not in SCHEDULES:
        raise OptimizerError(unknown("schedule", name, SCHEDULES))
    return Description(name, _first_line(SCHEDULES[name]), knobs_of(SCHEDULES[name]))


def _known(name: object) -> type[Rule]:
    if not isinstance(name, str) or name not in RULES:
        raise OptimizerError(unknown("optimizer", name, RULES))
    return RULES[name]


def _knob_names(made: type[Rule]) -> tuple[str, ...]:
    return ("learning_rate", *(knob.name for knob in knobs_of(made)))


def _first_line(made: type[object]) -> str:
    return (made.__doc__ or "").strip().split("\n")[0]
