"""Multinomial logistic regression on the digits: convex, so its optimum is a number."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from pslab.simulator.problems.digits import CLASSES, Batch, accuracy, dealt, digits, softmax_loss
from pslab.simulator.problems.problem import Gradient, Parameters


@dataclass(frozen=True)
class Logistic:
    """Cross-entropy of ``x W + b`` plus l2/2 |W|^2, which makes it strongly convex in W."""

    batch_size: int = 32
    l2: float = 0.01

    def initial(self) -> Parameters:
        return {"W": np.zeros((64, CLASSES), np.float32), "b": np.zeros(CLASSES, np.float32)}

    def batches(self, worker: int, workers: int, seed: int, epoch: int) -> Iterator[Batch]:
        return dealt(worker, workers, seed, epoch, self.batch_size)

    def gradient(self, parameters: Parameters, batch: Batch) -> Gradient:
        x, y = batch
        weights, bias = parameters["W"], parameters["b"]
        loss, d_logits = softmax_loss(x @ weights + bias, y)
        loss += 0.5 * self.l2 * float(np.vdot(weights, weights))
        d_weights = x.T @ d_logits + np.float32(self.l2) * weights
        return Gradient({"W": d_weights, "b": d_logits.sum(axis=0)}, loss, len(y))

    def evaluate(self, parameters: Parameters) -> dict[str, float]:
        """`loss` on all training data, `gap` of it above the optimum's, `accuracy` on what was held out."""
        train, (x, y) = digits()
        loss = self.gradient(parameters, train).loss
        found = accuracy(x @ parameters["W"] + parameters["b"], y)
        return {"loss": loss, "gap": loss - optimum(self), "accuracy": found}


@cache
def optimum(problem: Logistic) -> float:
    """The least training loss, by Nesterov's method in full batches (to about 1e-6)."""
    train, _ = digits()
    at = {name: values.copy() for name, values in problem.initial().items()}
    before = dict(at)
    least = np.inf
    for step in range(1500):
        ahead = {name: at[name] + np.float32(step / (step + 3)) * (at[name] - before[name]) for name in at}
        gradient = problem.gradient(ahead, train)
        least = min(least, gradient.loss)
        before, at = at, {name: ahead[name] - np.float32(0.25) * gradient.values[name] for name in at}
    return min(least, problem.gradient(at, train).loss)
