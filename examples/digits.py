"""A small network on handwritten digits: the job of the quickstart.

ps-lab run examples/digits-sync.toml
"""

import keras
from digits_data import digits, shuffled_batches

from psworker import Job


class Digits(Job):
    batch_size: int = 32  # per worker
    hidden: int = 64
    uneven: bool = False  # True: worker i leaves out its last i batches of every epoch

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ("accuracy",)

    def model(self):
        return keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(self.hidden, activation="relu"),
                keras.layers.Dense(10),
            ]
        )

    def dataset(self, worker_index, worker_count, seed):
        return shuffled_batches(
            digits("train"),
            worker_index,
            worker_count,
            seed,
            self.batch_size,
            leave_out=worker_index if self.uneven else 0,
        )

    def heldout(self):
        return digits("heldout")
