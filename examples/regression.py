"""Regression: the target is one number.

Inputs and target are brought to about the same range, or the first steps are
far too large; multiply a prediction by SCALE again. Shapes of target and
prediction must be equal: `Y[:, None]` makes the target a column.

ps-worker --ps-hosts 127.0.0.1:7070 --job examples/regression.py:Progression
"""

import keras
from sklearn.datasets import load_diabetes

from psworker import Job

X, Y = load_diabetes(return_X_y=True)
SCALE = 100.0  # the target is the progression of a disease, from 25 to 346
X, Y = (20 * X).astype("float32"), (Y[:, None] / SCALE).astype("float32")
HELD_OUT = slice(0, None, 5)


class Progression(Job):
    batch_size: int = 16
    loss = "mse"
    metrics = ["mae"]

    def model(self):
        return keras.Sequential(
            [
                keras.Input((X.shape[1],)),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dense(1),  # no activation: any number
            ]
        )

    def dataset(self, worker_index, worker_count, seed):
        kept = [row for row in range(len(X)) if row % 5]
        mine = kept[worker_index::worker_count]
        parts = (mine[i : i + self.batch_size] for i in range(0, len(mine), self.batch_size))
        return [(X[part], Y[part]) for part in parts]

    def heldout(self):
        return X[HELD_OUT], Y[HELD_OUT]
