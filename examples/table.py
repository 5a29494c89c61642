"""A table of numbers whose columns have different units.

`Normalization` brings them to mean 0 and variance 1. It is adapted to the
training data of all workers, so that every worker has the same model.

ps-worker --ps-hosts 127.0.0.1:7070 --job examples/table.py:Wine
"""

import keras
from sklearn.datasets import load_wine

from psworker import Job

X, Y = load_wine(return_X_y=True)  # 13 columns, 3 classes
X = X.astype("float32")
KEPT = [row for row in range(len(X)) if row % 5]
HELD_OUT = slice(0, None, 5)


class Wine(Job):
    batch_size: int = 16
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy"]

    def model(self):
        normalization = keras.layers.Normalization()
        normalization.adapt(X[KEPT])
        return keras.Sequential(
            [
                keras.Input((X.shape[1],)),
                normalization,
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dense(3),  # one number for each class
            ]
        )

    def dataset(self, worker_index, worker_count, seed):
        # The rows are sorted by class: without another order each batch would have one class.
        order = keras.random.shuffle(KEPT, seed=seed)
        mine = [int(row) for row in order][worker_index::worker_count]
        parts = (mine[i : i + self.batch_size] for i in range(0, len(mine), self.batch_size))
        return [(X[part], Y[part]) for part in parts]

    def heldout(self):
        return X[HELD_OUT], Y[HELD_OUT]
