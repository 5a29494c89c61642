"""One hidden layer on the digits, gradients by hand."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pslab.simulator.problems.digits import CLASSES, Batch, accuracy, dealt, digits, softmax_loss
from pslab.simulator.problems.problem import Floats, Gradient, Parameters


@dataclass(frozen=True)
class Mlp:
    """64 -> `hidden` (ReLU) -> 10. Initial values: Glorot uniform, from a seed of their own."""

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
        """Loss and accuracy on what was held out."""
        _, (x, y) = digits()
        p = parameters
        logits = np.maximum(x @ p["W1"] + p["b1"], 0) @ p["W2"] + p["b2"]
        return {"loss": softmax_loss(logits, y)[0], "accuracy": accuracy(logits, y)}
