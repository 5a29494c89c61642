"""Next symbol of a random Markov chain of second order, whose entropy is known: so a model's excess loss is exact."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.simulator.problems import Gradient
from pslab.simulator.problems.digits import softmax_loss

Floats = NDArray[np.float32]
Contexts = NDArray[np.int64]

SYMBOLS = 64
# The chain is always the same one; runs differ in what they see of it, and where they begin.
CHAIN_SEED, RANK, SHARPNESS = 7, 4, 2.0


class MarkovChain:
    """A network of two layers on both symbols of the context, one-hot: 1M parameters with 5,376 hidden units.

    `seed`: of the initial values; `steps`: batches of each worker.
    """

    def __init__(self, seed: int = 0, steps: int = 100, hidden: int = 5376, batch_size: int = 32) -> None:
        self._seed, self._steps, self._hidden, self._size = seed, steps, hidden, batch_size

    @cached_property
    def _chain(self) -> NDArray[np.float64]:
        """Probabilities of the next symbol after each context: [SYMBOLS**2, SYMBOLS]."""
        random = np.random.default_rng(CHAIN_SEED)
        first, second = (random.normal(size=(SYMBOLS, RANK)) for _ in range(2))
        pairs = (first[:, None, :] + second[None, :, :]).reshape(-1, RANK)
        scores = SHARPNESS * np.tanh(pairs) @ random.normal(size=(RANK, SYMBOLS))
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(scores / scores.sum(axis=1, keepdims=True))

    @cached_property
    def _contexts(self) -> NDArray[np.float64]:
        """The stationary distribution of contexts."""
        share = np.full(SYMBOLS**2, SYMBOLS**-2.0)
        for _ in range(200):
            joint = (share[:, None] * self._chain).reshape(SYMBOLS, SYMBOLS, SYMBOLS)
            share = joint.sum(axis=0).reshape(-1)
        return share / share.sum()

    @property
    def entropy(self) -> float:
        """Nats per symbol: the least loss that a model can have."""
        each = -(self._chain * np.log(self._chain)).sum(axis=1)
        return float(self._contexts @ each)

    def initial(self) -> dict[str, Floats]:
        random = np.random.default_rng([self._seed, 1])
        below, above = (6 / (2 + self._hidden)) ** 0.5, (6 / (self._hidden + SYMBOLS)) ** 0.5
        return {
            "below": random.uniform(-below, below, (2 * SYMBOLS, self._hidden)).astype(np.float32),
            "above": random.uniform(-above, above, (self._hidden, SYMBOLS)).astype(np.float32),
            "bias": np.zeros(SYMBOLS, np.float32),
        }

    def batches(self, worker: int, workers: int, seed: int, epoch: int) -> Iterator[Any]:
        random = np.random.default_rng([seed, epoch, worker, workers])
        sums = np.cumsum(self._chain, axis=1)
        for _ in range(self._steps):
            contexts = random.choice(SYMBOLS**2, self._size, p=self._contexts)
            drawn = random.random(self._size)
            yield contexts, np.minimum((sums[contexts] < drawn[:, None]).sum(axis=1), SYMBOLS - 1)

    def gradient(self, parameters: Any, batch: tuple[Contexts, Contexts]) -> Gradient:
        contexts, labels = batch
        hidden, logits = self._forward(parameters, contexts)
        loss, slope = softmax_loss(logits, labels)
        below = (slope @ parameters["above"].T) * (hidden > 0)
        seen = np.zeros((len(contexts), 2 * SYMBOLS), np.float32)
        rows = np.arange(len(contexts))
        seen[rows, contexts // SYMBOLS] = seen[rows, SYMBOLS + contexts % SYMBOLS] = 1
        values = {"below": seen.T @ below, "above": hidden.T @ slope, "bias": slope.sum(axis=0)}
        return Gradient(values, loss, len(labels))

    def evaluate(self, parameters: Any) -> dict[str, float]:
        """Return the expected `loss` over all contexts, and its `excess` over the entropy, in nats."""
        _, logits = self._forward(parameters, np.arange(SYMBOLS**2))
        scores = logits.astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        loss = float(-self._contexts @ (self._chain * scores).sum(axis=1))
        return {"loss": loss, "excess": loss - self.entropy}

    def _forward(self, parameters: Any, contexts: Contexts) -> tuple[Floats, Floats]:
        below = parameters["below"]
        hidden = np.maximum(below[contexts // SYMBOLS] + below[SYMBOLS + contexts % SYMBOLS], 0)
        return hidden, hidden @ parameters["above"] + parameters["bias"]
