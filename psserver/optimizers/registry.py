"""The built-in optimizers: configuration in, `Optimizer` out."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from psserver.optimizers.clipping import KNOBS as CLIPPING
from psserver.optimizers.clipping import Clip
from psserver.optimizers.optimizer import Optimizer
from psserver.optimizers.reading import OptimizerError, knobs_read, unknown
from psserver.optimizers.rule import Rule, WholeRule
from psserver.optimizers.rules.adadelta import Adadelta
from psserver.optimizers.rules.adafactor import Adafactor
from psserver.optimizers.rules.adagrad import Adagrad
from psserver.optimizers.rules.adam import Adam
from psserver.optimizers.rules.adamax import Adamax
from psserver.optimizers.rules.adamw import AdamW
from psserver.optimizers.rules.delayed_nesterov import DelayedNesterov
from psserver.optimizers.rules.ftrl import Ftrl
from psserver.optimizers.rules.lamb import Lamb
from psserver.optimizers.rules.lion import Lion
from psserver.optimizers.rules.momentum import Momentum
from psserver.optimizers.rules.nadam import Nadam
from psserver.optimizers.rules.nesterov import Nesterov
from psserver.optimizers.rules.rmsprop import RMSprop
from psserver.optimizers.rules.sgd import SGD
from psserver.optimizers.schedules import SCHEDULES, read_schedule
from pswire.domains import Domain
from pswire.knobs import Knob, KnobError, knobs_of

RULES: Mapping[str, type[Rule | WholeRule]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "nesterov": Nesterov,
    "delayed-nesterov": DelayedNesterov,
    "adam": Adam,
    "adamw": AdamW,
    "nadam": Nadam,
    "adamax": Adamax,
    "adagrad": Adagrad,
    "adadelta": Adadelta,
    "rmsprop": RMSprop,
    "lion": Lion,
    "ftrl": Ftrl,
    "lamb": Lamb,
    "adafactor": Adafactor,
}


EXCLUDE = Knob(
    "exclude_from_weight_decay",
    Domain("words"),
    'names of variables that do not decay, "*" and "?" for any characters',
    (),
)


@dataclass(frozen=True, slots=True)
class Description:
    """An optimizer or a schedule for readers; `str()` gives a text.

    `summary`: one sentence. `notes`: formula and source, in paragraphs.
    """

    name: str
    summary: str
    knobs: tuple[Knob, ...]
    notes: str

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.summary}", *(f"  {knob}" for knob in self.knobs)])


def names() -> tuple[str, ...]:
    """Return the names of the built-in optimizers."""
    return tuple(RULES)


def schedule_names() -> tuple[str, ...]:
    """Return the names of the learning-rate schedules."""
    return tuple(SCHEDULES)


def build(config: Mapping[str, object]) -> Optimizer:
    """Build the optimizer that `config` describes.

    ``{"name": "adam", "learning_rate": 0.001, "beta_1": 0.9}``; all but "name" default to Keras' values.
    "learning_rate" is a number, or a table such as
    ``{"schedule": "cosine", "initial_learning_rate": 0.1, "decay_steps": 1000}``.

    Raises OptimizerError for an unknown name, knob or schedule (with the nearest known one) and for a value out of
    range (with the range).
    """
    table = dict(config)
    if "name" not in table:
        raise OptimizerError(f"optimizer: name is missing; give one of {', '.join(RULES)}")
    name = table.pop("name")
    made = _known(name)
    schedule = read_schedule(table.pop("learning_rate", made.learning_rate))
    exclude = read_patterns(str(name), made, table.pop(EXCLUDE.name, ()))
    clip = _read_clip(str(name), made, table)
    for key in table:
        homes = [other for other, rule in RULES.items() if key in _knob_names(rule)]
        if homes and name not in homes:
            raise OptimizerError(
                f"optimizer {name} has no knob {key!r}; it has {', '.join(_knob_names(made))}. "
                f"{key!r} is a knob of {', '.join(homes)}"
            )
    also = ("name", "learning_rate", EXCLUDE.name, *(knob.name for knob in CLIPPING))
    rule = knobs_read(made, table, f"optimizer {name}", also=also)
    return Optimizer(str(name), rule, schedule, exclude, clip=clip)


def describe(name: str) -> Description:
    """Describe an optimizer's knobs and defaults. Raises OptimizerError for an unknown name."""
    made = _known(name)
    domain = Domain("number", at_least=0)
    rate = Knob("learning_rate", domain, "size of a step; or a table with a schedule", made.learning_rate)
    more = (*((EXCLUDE,) if _decays(made) else ()), *CLIPPING)
    return Description(
        name, _first_line(made), (rate, *knobs_of(made), *more), _notes(sys.modules[made.__module__])
    )


def describe_schedule(name: str) -> Description:
    """Describe a schedule's knobs and defaults. Raises OptimizerError for an unknown name."""
    if name not in SCHEDULES:
        raise OptimizerError(unknown("schedule", name, SCHEDULES))
    return Description(name, _first_line(SCHEDULES[name]), knobs_of(SCHEDULES[name]), _rest(SCHEDULES[name]))


def _known(name: object) -> type[Rule | WholeRule]:
    if not isinstance(name, str) or name not in RULES:
        raise OptimizerError(unknown("optimizer", name, RULES))
    return RULES[name]


def _knob_names(made: type[Rule | WholeRule]) -> tuple[str, ...]:
    return ("learning_rate", *(knob.name for knob in knobs_of(made)))


def _decays(made: type[Rule | WholeRule]) -> bool:
    return "weight_decay" in _knob_names(made)


def read_patterns(name: str, made: type[Rule | WholeRule], value: object) -> tuple[str, ...]:
    """Read the knob `exclude_from_weight_decay`. Raises OptimizerError."""
    try:
        patterns: tuple[str, ...] = EXCLUDE.check(f"optimizer {name}", value)
    except KnobError as error:
        raise OptimizerError(str(error)) from error
    if patterns and not _decays(made):
        raise OptimizerError(f"optimizer {name} has no weight_decay that {EXCLUDE.name} could leave out")
    return patterns


def _read_clip(name: str, made: type[Rule | WholeRule], table: dict[str, object]) -> Clip | None:
    """Take the clipping knobs out of `table` and read them. Raises OptimizerError."""
    try:
        found = [
            Clip(knob.name, limit)
            for knob in CLIPPING
            if knob.name in table
            and (limit := knob.check(f"optimizer {name}", table.pop(knob.name), single=True))
        ]
    except KnobError as error:
        raise OptimizerError(str(error)) from error
    kinds = " and ".join(each.knob for each in found)
    if len(found) > 1:
        raise OptimizerError(f"optimizer {name}: expected at most one kind of clipping, got {kinds}")
    return found[0] if found else None


def _first_line(made: type[object]) -> str:
    return (made.__doc__ or "").strip().split("\n")[0]


def _rest(made: type[object]) -> str:
    return (inspect.getdoc(made) or "").partition("\n")[2].strip()


def _notes(module: ModuleType) -> str:
    """Return the notes on a rule: formula and source from its module's docstring."""
    return (inspect.getdoc(module) or "").replace("::\n", ":\n")
