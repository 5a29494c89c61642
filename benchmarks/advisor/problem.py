"""Ten classes that a small network has to tell apart, in numpy: the same gradients for simulated and real workers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.simulator.problems.problem import Gradient

Floats = NDArray[np.float32]
FEATURES, CLASSES, TRAINED, HELD_OUT = 64, 10, 4096, 1000
# Distance of the classes' centres in standard deviations of their samples: about 95 % can be told apart.
APART = 0.6


@cache
def data() -> tuple[tuple[Floats, NDArray[np.int64]], tuple[Floats, NDArray[np.int64]]]:
    """Return (x [n, 64], y [n]) to train on, and the same to evaluate on."""
    random = np.random.default_rng(28)
    centres = random.normal(size=(2 * CLASSES, FEATURES)) * APART
    group = random.integers(2 * CLASSES, size=TRAINED + HELD_OUT)
    x = (centres[group] + random.normal(size=(len(group), FEATURES))).astype(np.float32)
    # Two clusters for each class, so that no linear model is enough.
    y = (group % CLASSES).astype(np.int64)
    return (x[:TRAINED], y[:TRAINED]), (x[TRAINED:], y[TRAINED:])


@dataclass(frozen=True)
class Clusters:
    """A network 64 -> `hidden` (ReLU) -> 10. `padding`: float32 values more that travel and are not trained."""

    hidden: int = 32
    batch_size: int = 16
    padding: int = 0

    def initial(self) -> Mapping[str, Floats]:
        random = np.random.default_rng(1)
        shapes = {"W1": (FEATURES, self.hidden), "W2": (self.hidden, CLASSES)}
        found = {
            name: (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)
            for name, shape in shapes.items()
        }
        found |= {"b1": np.zeros(self.hidden, np.float32), "b2": np.zeros(CLASSES, np.float32)}
        return found | ({"padding": np.zeros(self.padding, np.float32)} if self.padding else {})

    def batches(self, worker: int, workers: int, seed: int, epoch: int) -> Iterator[Any]:
        (x, y), _ = data()
        mine = np.random.default_rng([seed, epoch]).permutation(len(x))[worker::workers]
        for start in range(0, len(mine), self.batch_size):
            chosen = mine[start : start + self.batch_size]
            yield x[chosen], y[chosen]

    def gradient(self, parameters: Mapping[str, Floats], batch: Any) -> Gradient:
        x, y = batch
        p = parameters
        hidden = np.maximum(x @ p["W1"] + p["b1"], 0)
        loss, error = _loss(hidden @ p["W2"] + p["b2"], y)
        behind = (error @ p["W2"].T) * (hidden > 0)
        values = {
            "W1": x.T @ behind,
            "W2": hidden.T @ error,
            "b1": behind.sum(axis=0),
            "b2": error.sum(axis=0),
        }
        return Gradient(
            {name: values[name] if name in values else np.zeros_like(start) for name, start in p.items()},
            loss,
            len(y),
        )

    def evaluate(self, parameters: Mapping[str, Floats]) -> dict[str, float]:
        _, (x, y) = data()
        p = parameters
        scores = np.maximum(x @ p["W1"] + p["b1"], 0) @ p["W2"] + p["b2"]
        return {"loss": _loss(scores, y)[0], "accuracy": float(np.mean(scores.argmax(axis=1) == y))}


def _loss(scores: Floats, y: NDArray[np.int64]) -> tuple[float, Floats]:
    """Return the mean cross-entropy, and its gradient with respect to the scores."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    odds = np.exp(shifted)
    total = odds.sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = float(np.mean(np.log(total[:, 0]) - shifted[rows, y]))
    error = odds / total
    error[rows, y] -= 1
    return loss, (error / len(y)).astype(np.float32)
