"""Runs on the quadratic problem with plain SGD: every constant of the theory is known."""

from dataclasses import dataclass

from pslab.runs.folder import EXPERIMENT, Run
from pslab.simulator.problems.quadratic import Quadratic
from pslab.simulator.problems.registry import numpy_problem
from psserver import policies
from psserver.optimizers import build


class NoTheoryError(ValueError):
    """The assumptions of the theory do not hold for a run; the text says which."""


@dataclass(frozen=True, slots=True)
class Descent:
    """SGD on a quadratic. `gap` is f(x_0) - f(x*), `squared` |grad f(x_0)|^2, `variance` sigma^2 of one gradient."""

    rate: float
    convex: float
    smooth: float
    variance: float
    gap: float
    squared: float


def descent(run: Run) -> Descent:
    """Raises NoTheoryError, and RunError when the run cannot be read."""
    if not (run.path / EXPERIMENT).is_file() or run.experiment.simulation.problem != "quadratic":
        raise NoTheoryError("the constants of the problem are known for simulated quadratics only")
    if not _plain(run):
        raise NoTheoryError("nothing is known here about updates under this policy")
    problem = numpy_problem("quadratic", run.experiment.simulation.options).problem
    assert isinstance(problem, Quadratic)
    if len(set(problem.centres)) > 1 or len(set(problem.curvatures)) > 1:
        raise NoTheoryError("the workers' data differ, so a gradient is not an unbiased one")
    start = problem.evaluate(problem.initial())
    curvature = problem.curvatures[0]
    return Descent(
        rate=_rate(run),
        convex=curvature * float(problem.h.min()),
        smooth=curvature * float(problem.h.max()),
        variance=problem.dimensions * problem.noise**2,
        gap=start["loss"],
        squared=start["gradient"] ** 2,
    )


def _plain(run: Run) -> bool:
    """Contributions are gradients at the version that was granted, and updates are sums of them."""
    knobs = {key: value for key, value in run.summary.policy.items() if key != "name"}
    name = str(run.summary.policy["name"])
    if name not in policies.names():
        return False
    policy = policies.build(name, knobs, run.summary.workers)
    return policy.local_rule.plain and not policy.tensors.lists


def _rate(run: Run) -> float:
    config = run.summary.optimizer
    rate = config.get("learning_rate")
    # With every default written out, anything but SGD's two entries is another rule.
    if config != build({"name": "sgd", "learning_rate": rate}).config or not isinstance(rate, int | float):
        raise NoTheoryError("the theory is of sgd with a constant learning rate")
    return float(rate)
