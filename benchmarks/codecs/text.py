"""Which of two made-up languages a text is in, with an LSTM: examples/fit_text.py as a job.

It has 32 units instead of 16, because rows of fewer than 32 elements are not coded.
"""

import keras
import numpy as np

from psworker import Job


def texts() -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of letters, [texts, letters], and labels."""
    generator = np.random.default_rng(0)
    syllables = np.array([["ka", "ri", "mo", "ta"], ["ka", "lu", "ne", "ta"]])
    labels = generator.integers(0, 2, 1024)
    lines = ["".join(generator.choice(syllables[label], 6)) for label in labels]
    letters = {letter: number for number, letter in enumerate(sorted(set("".join(lines))))}
    return np.array([[letters[letter] for letter in line] for line in lines]), labels


class Text(Job):
    """The last quarter of the texts is held out. Few syllables: some texts leave nothing to tell them apart by."""

    batch_size: int = 16
    loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def model(self):
        layers = keras.layers
        return keras.Sequential(
            [keras.Input((12,)), layers.Embedding(16, 32), layers.LSTM(32), layers.Dense(1)]
        )

    def dataset(self, worker_index, worker_count, seed):
        x, y = (part[:768] for part in texts())
        mine = np.random.default_rng(seed).permutation(len(x))[worker_index::worker_count]
        starts = range(0, len(mine), self.batch_size)
        chosen = [mine[start : start + self.batch_size] for start in starts]
        return [(x[each], y[each].astype(np.float32)) for each in chosen]

    def evaluate(self, model):
        x, y = (part[768:] for part in texts())
        logits = np.asarray(model(x, training=False))[:, 0]
        return {
            "accuracy": float(np.mean((logits > 0) == y)),
            "loss": float(np.mean(np.logaddexp(0, np.where(y == 1, -logits, logits)))),
        }
