"""A script whose `fit` adds one to an element of its own in each batch.

Arguments: batches of an epoch, epochs. Worker i has the elements from i * ROOM on.
"""

import sys
import threading
from typing import Any

import numpy as np

import psworker.keras  # isort: skip  (before Keras)
import keras

ROOM, WORKERS = 200, 5
# Seconds of a batch beside its few milliseconds: time for a kill.
PAUSE = 0.01


class Elements(keras.layers.Layer):  # type: ignore[misc]
    """The values of elements, by their numbers."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(name="w", shape=(WORKERS * ROOM,), initializer="zeros")
        self.built = True

    def call(self, numbers: Any) -> Any:
        return keras.ops.one_hot(keras.ops.cast(numbers, "int32"), WORKERS * ROOM) @ self.w[:, None]


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """One element in each."""

    def __init__(self, first: int, count: int) -> None:
        super().__init__()
        self.first, self.count = first, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return np.full((1,), self.first + index, np.float32), np.zeros((1, 1), np.float32)


class Pause(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        threading.Event().wait(PAUSE)


def main(batches: int, epochs: int) -> None:
    model = keras.Sequential([keras.Input(()), Elements()])
    model.compile(keras.optimizers.SGD(1.0), loss=lambda _, output: -keras.ops.mean(output))
    job = psworker.keras.distribute(model)
    model.fit(
        Batches(job.session.rank * ROOM, batches),
        epochs=epochs,
        verbose=0,
        shuffle=False,
        callbacks=[Pause()],
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
