"""Problems of the user's own: a class in numpy, found as own jobs are, and tried once before anything
runs."""

import inspect
import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from pslab.simulator.problems.problem import Gradient, Parameters, Problem, ProblemError
from psworker.job.errors import JobError, blame, import_job_module, split_target

METHODS = ("initial", "batches", "gradient", "evaluate")
_LIKE = "see pslab.simulator.problems.Problem"


def own_problem(name: str, options: Mapping[str, object]) -> Problem:
    """Return ``Class(**options)`` for "package.module:Class" or "path/file.py:Class", checked on its first batch.

    Raises ProblemError. Later on its code raises JobError where it fails or returns something else.
    """
    try:
        problem = OwnProblem(_made(name, options))
        problem.try_out()
    except JobError as error:
        raise ProblemError(f"simulation.problem {name}: {error}\n{error.details}".rstrip()) from error
    return problem


def _made(name: str, options: Mapping[str, object]) -> Any:
    place, attribute = split_target(name)
    module = import_job_module(place)
    if not hasattr(module, attribute):
        raise JobError(f"{place} has no {attribute!r}")
    kind = getattr(module, attribute)
    methods = ", ".join(METHODS)
    if not isinstance(kind, type):
        raise JobError(f"expected a class with the methods {methods}, got {kind!r}; {_LIKE}")
    missing = [method for method in METHODS if not callable(getattr(kind, method, None))]
    if missing:
        raise JobError(
            f"expected a class with the methods {methods}, got one without {', '.join(missing)}; {_LIKE}"
        )
    try:
        inspect.signature(kind).bind(**options)
    except TypeError as error:
        raise JobError(
            f"its options are the arguments of {attribute}{inspect.signature(kind)}: {error}"
        ) from error
    with blame(f"its {attribute}({', '.join(options)})"):
        return kind(**options)


class OwnProblem:
    """A user's problem, whose results are checked each time. `metrics`: names that it evaluates. Raises JobError."""

    metrics: tuple[str, ...] = ()

    def __init__(self, problem: Any) -> None:
        self._problem = problem
        with blame("initial()"):
            found = problem.initial()
        if not isinstance(found, Mapping) or not found:
            _refuse("initial()", "a dict of arrays by name, at least one", found)
        self._initial = {str(key): self._array("initial()", str(key), value) for key, value in found.items()}

    def initial(self) -> Parameters:
        return {key: values.copy() for key, values in self._initial.items()}

    def batches(self, worker: int, workers: int, seed: int, epoch: int) -> Iterator[Any]:
        with blame(f"batches({worker}, {workers}, {seed}, {epoch})"):
            yield from self._problem.batches(worker, workers, seed, epoch)

    def gradient(self, parameters: Parameters, batch: Any) -> Gradient:
        with blame("gradient(parameters, batch)"):
            found = self._problem.gradient(parameters, batch)
        if not isinstance(found, Gradient):
            _refuse("gradient()", "pslab.simulator.problems.Gradient(values, loss, samples)", found)
        if not isinstance(found.values, Mapping) or found.values.keys() != self._initial.keys():
            _refuse("gradient()", f"values of {', '.join(self._initial)}", found.values)
        if not isinstance(found.samples, int) or found.samples < 1 or not isinstance(found.loss, int | float):
            _refuse("gradient()", "a number as loss and a count of samples", (found.loss, found.samples))
        shaped = partial(self._array, "gradient()", finite=False)
        return Gradient(
            {key: shaped(key, found.values[key], like=values) for key, values in self._initial.items()},
            float(found.loss),
            found.samples,
        )

    def evaluate(self, parameters: Parameters) -> dict[str, float]:
        with blame("evaluate(parameters)"):
            found = self._problem.evaluate(parameters)
        numbers = isinstance(found, Mapping) and all(isinstance(each, int | float) for each in found.values())
        if not numbers:
            _refuse("evaluate()", "a dict of numbers by name", found)
        return {str(key): float(value) for key, value in found.items()}

    def try_out(self) -> None:
        """Take one step of worker 0 and evaluate, where all has to be finite: later on a model may diverge."""
        first = list(islice(self.batches(0, 1, 0, 0), 1))
        if not first:
            raise JobError("batches(0, 1, 0, 0): expected one batch or more, got none")
        gradient = self.gradient(self.initial(), first[0])
        for key, values in gradient.values.items():
            self._array("gradient()", key, values)
        metrics = self.evaluate(self.initial())
        self.metrics = tuple(metrics)
        for key, number in (("loss of gradient()", gradient.loss), *metrics.items()):
            if not math.isfinite(number):
                raise JobError(f"{key}: expected a finite number at the initial values, got {number}")

    def _array(
        self, method: str, key: str, value: Any, *, like: Any = None, finite: bool = True
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            _refuse(f"{method}: {key}", "an array of float32", value)
        if like is not None and value.shape != like.shape:
            raise JobError(
                f"{method}: {key}: expected the shape {like.shape} of initial(), got {value.shape}"
            )
        if finite and not np.isfinite(value).all():
            raise JobError(f"{method}: {key}: expected finite values, got NaN or infinite ones")
        return value.astype(np.float32, copy=False)


def _refuse(what: str, expected: str, got: object) -> NoReturn:
    text = repr(got)
    raise JobError(f"{what}: expected {expected}, got {text if len(text) <= 80 else type(got).__name__}")
