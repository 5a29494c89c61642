"""Problems for simulated workers: numpy only, gradients by hand. Of the built-in ones the optima are known.

Here: a problem from its name and options, as an experiment file has them.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pslab.simulator.problems.clicks import Clicks
from pslab.simulator.problems.digits import Logistic, Mlp
from pslab.simulator.problems.own import own_problem
from pslab.simulator.problems.problem import Gradient, NumpyTrainer, Problem, ProblemError
from pslab.simulator.problems.quadratic import Quadratic
from pswire.nearest import did_you_mean

__all__ = ["PROBLEMS", "Gradient", "NumpyTrainer", "Problem", "ProblemError", "numpy_problem"]

PROBLEMS: dict[str, Any] = {"quadratic": Quadratic, "logistic": Logistic, "mlp": Mlp, "clicks": Clicks}
"""Problems by name. Each is a dataclass whose fields are its options."""

# Options that must be above 0; the others may be 0.
_POSITIVE = (
    "dimensions",
    "condition",
    "batches_per_epoch",
    "batch_size",
    "hidden",
    "features",
    "vocabulary",
    "dim",
)


def numpy_problem(name: str, options: Mapping[str, object], units: int = 0) -> NumpyTrainer:
    """Return the trainer of a problem. `name`: a built-in one, or module:Class of your own.

    `units`: its data is dealt as that many work units, if above 0. Raises ProblemError for an unknown problem, an
    unknown option, an invalid value, or a class of your own that is no problem.
    """
    if ":" in name:
        return NumpyTrainer(own_problem(name, options), units)
    try:
        return NumpyTrainer(_built_in(name, options), units)
    except ProblemError as error:
        raise ProblemError(f"simulation.options: {error}") from error


def _built_in(name: str, options: Mapping[str, object]) -> Problem:
    if name not in PROBLEMS:
        raise ProblemError(f"unknown problem {name!r}{did_you_mean(name, PROBLEMS)}")
    known = {option.name: option.default for option in fields(PROBLEMS[name])}
    given = {}
    for option, value in options.items():
        if option not in known:
            raise ProblemError(f"problem {name} has no option {option!r}{did_you_mean(option, known)}")
        given[option] = _fitting(option, value, known[option])
    made: Problem = PROBLEMS[name](**given)
    return made


def _fitting(option: str, value: object, default: object) -> object:
    if isinstance(default, tuple):
        numbers = value if isinstance(value, list | tuple) else ()
        if not numbers or not all(_is_number(number) and math.isfinite(number) for number in numbers):
            raise ProblemError(f"{option}: expected a list of numbers, got {value!r}")
        return tuple(float(number) for number in numbers)
    whole = isinstance(default, int)
    if not _is_number(value) or (whole and not isinstance(value, int)):
        raise ProblemError(f"{option}: expected a {'whole ' if whole else ''}number, got {value!r}")
    if not math.isfinite(value):  # type: ignore[arg-type]
        raise ProblemError(f"{option}: expected a finite number, got {value!r}")
    if option in _POSITIVE and not value > 0:  # type: ignore[operator]
        raise ProblemError(f"{option}: expected more than 0, got {value!r}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
