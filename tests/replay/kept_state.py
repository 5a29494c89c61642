"""Jobs whose layers keep something between batches: averages, random generators, states of recurrent layers."""

import keras
import numpy as np
import tensorflow as tf

from psworker import Job

SAMPLES, STEPS = 4, 3


class Averages(Job):
    loss = "mse"
    metrics = ("mae",)

    def model(self):
        inner = [
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(momentum=0.7),
            keras.layers.Dropout(0.4),
        ]
        return keras.Sequential([keras.Input((STEPS,)), *inner, keras.layers.Dense(1)])

    def dataset(self, worker_index, worker_count, seed):
        dice = np.random.default_rng(worker_index)
        batches = 5 + worker_index
        return [
            (each, each.sum(axis=1, keepdims=True)) for each in dice.normal(size=(batches, SAMPLES, STEPS))
        ]

    def heldout(self):
        return self.dataset(7, 9, 0)


class Recurrent(Averages):
    """Each batch goes on where the one before ended."""

    def model(self):
        states = keras.layers.Bidirectional(keras.layers.SimpleRNN(3, stateful=True, unroll=True))
        return keras.Sequential([keras.Input(batch_shape=(SAMPLES, STEPS, 1)), states, keras.layers.Dense(1)])

    def dataset(self, worker_index, worker_count, seed):
        return [(x[:, :, None], y) for x, y in super().dataset(worker_index, worker_count, seed)]


class Scattering(keras.layers.Layer):
    """It draws from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.dice = tf.random.Generator.from_seed(3)
        self.helper = Unready()

    def call(self, x, training=False):
        return x + self.dice.normal(tf.shape(x)) if training else x


class Unready:
    """An object of a layer that has no state yet."""

    @property
    def state(self):
        raise ValueError("nothing is fitted")


class Scattered(Averages):
    def model(self):
        return keras.Sequential([keras.Input((STEPS,)), Scattering(), keras.layers.Dense(1)])
