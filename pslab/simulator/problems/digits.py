"""Scikit-learn's handwritten digits, and two models with gradients by hand.

Multinomial logistic regression is convex, so its optimum is known; the other model has one hidden layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pslab.simulator.problems.problem import Floats, Gradient, Parameters, ProblemError
from pswire.extras import how_to_install

Labels = NDArray[np.int64]
Batch = tuple[Floats, Labels]
CLASSES = 10


@cache
def digits() -> tuple[Batch, Batch]:
    """Return ((images [1437, 64] from 0 to 1, labels [1437]), the same of the 360 held out)."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise ProblemError(f"the digits need scikit-learn: {how_to_install('examples')}") from error
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels.astype(np.int64), test_size=360, stratify=labels, random_state=0
    )
    return (train_x, train_y), (test_x, test_y)


def dealt(worker: int, workers: int, seed: int, epoch: int, batch_size: int) -> Iterator[Batch]:
    """Iterate over one worker's batches, shuffled in each epoch.

    Samples are dealt in turn, so that batch k of all n workers together is batch k of one worker with n times the size.
    """
    (x, y), _ = digits()
    mine = np.random.default_rng([seed, epoch]).permutation(len(x))[worker::workers]
    for start in range(0, len(mine), batch_size):
        chosen = mine[start : start + batch_size]
        yield x[chosen], y[chosen]


def softmax_loss(logits: Floats, labels: Labels) -> tuple[float, Floats]:
    """Return the mean cross-entropy, and its gradient with respect to the logits [n, classes]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    total = exponentials.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(np.mean(np.log(total[:, 0]) - shifted[rows, labels]))
    gradient = exponentials / total
    gradient[rows, labels] -= 1
    return loss, (gradient / np.float32(len(labels))).astype(np.float32)


def accuracy(logits: Floats, labels: Labels) -> float:
    return float(np.mean(logits.argmax(axis=1) == labels))


@dataclass(frozen=True)
class Logistic:
    """Logistic regression: cross-entropy of ``x W + b`` plus l2/2 |W|^2, which makes it strongly convex in W."""

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
        """Return `loss` on all training data, its `gap` to the optimum, `accuracy` on the held-out data."""
        train, (x, y) = digits()
        loss = self.gradient(parameters, train).loss
        found = accuracy(x @ parameters["W"] + parameters["b"], y)
        return {"loss": loss, "gap": loss - optimum(self), "accuracy": found}


@cache
def optimum(problem: Logistic) -> float:
    """Return the least training loss, by Nesterov's method in full batches (to about 1e-6)."""
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


@dataclass(frozen=True)
class Mlp:
    """A network 64 -> `hidden` (ReLU) -> 10. Initial values: Glorot uniform, from their own seed."""

    hidden: int = 32
    batch_size: int = 32
    initial_seed: int = 0

    def initial(self) -> Parameters:
        rng = np.random.default_rng(self.initial_seed)

        def glorot(rows: int, columns: int) -> Floats:
            limit = np.sqrt(6 / (rows + columns))
            return rng.uniform(-limit, limit, (rows, columns)).astype(np.float32)

        return {
            "W1": glorot(64, self.hidden),
            "b1": np.zeros(self.hidden, np.float32),
            "W2": glorot(self.hidden, CLASSES),
            "b2": np.zeros(CLASSES, np.float32),
        }

    def batches(self, worker: int, workers: int, seed: int, epoch: int) -> Iterator[Batch]:
        return dealt(worker, workers, seed, epoch, self.batch_size)

    def gradient(self, parameters: Parameters, batch: Batch) -> Gradient:
        x, y = batch
        p = parameters
        hidden = np.maximum(x @ p["W1"] + p["b1"], 0)
        loss, d_logits = softmax_loss(hidden @ p["W2"] + p["b2"], y)
        d_hidden = (d_logits @ p["W2"].T) * (hidden > 0)
        values = {
            "W1": x.T @ d_hidden,
            "b1": d_hidden.sum(axis=0),
            "W2": hidden.T @ d_logits,
            "b2": d_logits.sum(axis=0),
        }
        return Gradient(values, loss, len(y))

    def evaluate(self, parameters: Parameters) -> dict[str, float]:
        """Return loss and accuracy on the held-out data."""
        _, (x, y) = digits()
        p = parameters
        logits = np.maximum(x @ p["W1"] + p["b1"], 0) @ p["W2"] + p["b2"]
        return {"loss": softmax_loss(logits, y)[0], "accuracy": accuracy(logits, y)}
