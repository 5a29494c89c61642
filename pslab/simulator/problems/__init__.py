"""Problems for simulated workers: numpy only, gradients by hand. Of the built-in ones the optima are known.

Here: a problem from its name and options, as an experiment file has them.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pslab.simulator.problems.clicks import Clicks
from pslab.simulator.problems.digits import Logistic, Mlp
from pslab.simulator.problems.own import own_problem
from pslab.simulator.problems.problem import Gradient, NumpyTrainer, Problem, ProblemError
from pslab.simulator.problems.quadratic import Quadratic
from pswire.domains import Domain
from pswire.knobs import Knob, KnobError
from pswire.nearest import did_you_mean

__all__ = ["PROBLEMS", "Gradient", "NumpyTrainer", "Problem", "ProblemError", "numpy_problem"]

PROBLEMS: dict[str, Any] = {"quadratic": Quadratic, "logistic": Logistic, "mlp": Mlp, "clicks": Clicks}
"""Problems by name. Each is a dataclass whose fields are its options."""

_COUNT = Domain("integer", at_least=1, at_most=10**6)
_SMALL = Domain("number", at_least=0, at_most=1e6)

# What options take: for all problems, since those of one name mean the same.
_DOMAINS: dict[str, Domain] = {
    **dict.fromkeys(("dimensions", "batch_size", "hidden", "features", "vocabulary", "dim"), _COUNT),
    **dict.fromkeys(("noise", "l2", "skew", "strength"), _SMALL),
    "batches_per_epoch": Domain("integer", at_least=1, at_most=2**40),
    "initial_seed": Domain("integer", at_least=0),
    "condition": Domain("number", at_least=1, at_most=1e12),
    "start": Domain("number", at_least=-1e6, at_most=1e6),
    "centres": Domain("numbers", at_least=-1e6, at_most=1e6),
    "curvatures": Domain("numbers", above=0, at_most=1e6),
}


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
    known = [option.name for option in fields(PROBLEMS[name])]
    given = {}
    for option, value in options.items():
        if option not in known:
            raise ProblemError(f"problem {name} has no option {option!r}{did_you_mean(option, known)}")
        given[option] = _fitting(option, value)
    made: Problem = PROBLEMS[name](**given)
    return made


def _fitting(option: str, value: object) -> object:
    if value == []:
        raise ProblemError(f"{option} must be a list of numbers, at least one, got []")
    try:
        return Knob(option, _DOMAINS[option], "").check("simulation.options", value)
    except KnobError as error:
        raise ProblemError(str(error).removeprefix("simulation.options: ")) from error
