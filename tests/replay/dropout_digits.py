"""A job whose steps draw random numbers and whose model has state that travels."""

import sys
from pathlib import Path

import keras

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from digits_data import digits, shuffled_batches

from psworker import Job


class DropoutDigits(Job):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ("accuracy",)

    def model(self):
        return keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(48, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(10),
            ]
        )

    def dataset(self, worker_index, worker_count, seed):
        return shuffled_batches(digits("train"), worker_index, worker_count, seed, 32)

    def heldout(self):
        return digits("heldout")


class CompiledDigits(DropoutDigits):
    """The same, as it is compiled: two batches make a contribution, and it is clipped."""

    loss = None
    metrics = ()

    def model(self):
        model = super().model()
        optimizer = keras.optimizers.Adam(0.003, clipnorm=0.5, gradient_accumulation_steps=2)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"])
        return model
