"""A small convolutional network with BatchNorm."""

import sys
from pathlib import Path

import keras

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from digits_data import digits, shuffled_batches

from psworker import Job


class CNN(Job):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ("accuracy",)
    filters: int = 8

    def model(self):
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((64,)),
                layers.Reshape((8, 8, 1)),
                layers.Conv2D(self.filters, 3, use_bias=False),
                layers.BatchNormalization(momentum=0.9),
                layers.ReLU(),
                layers.Flatten(),
                layers.Dropout(0.2),
                layers.Dense(10),
            ]
        )

    def dataset(self, worker_index, worker_count, seed):
        return shuffled_batches(digits("train"), worker_index, worker_count, seed, 64)

    def heldout(self):
        return digits("heldout")
