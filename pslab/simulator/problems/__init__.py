"""Problems for simulated workers: numpy only, gradients by hand, optima known."""

from pslab.simulator.problems.problem import Gradient, NumpyTrainer, Problem, ProblemError
from pslab.simulator.problems.registry import PROBLEMS, numpy_problem

__all__ = ["PROBLEMS", "Gradient", "NumpyTrainer", "Problem", "ProblemError", "numpy_problem"]
