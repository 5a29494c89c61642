"""A small regression whose weights begin with the same numbers in every process."""

import keras
import numpy as np
import tensorflow as tf

from psworker import Job

BATCH, BATCHES = 8, 10


def model() -> keras.Model:
    made = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)]
    )
    generator = np.random.default_rng(0)
    made.set_weights([0.5 * generator.normal(size=each.shape) for each in made.get_weights()])
    return made


def dataset() -> tf.data.Dataset:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(BATCH * BATCHES, 4)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, np.sin(x.sum(1, keepdims=True)))).batch(BATCH)


class Regression(Job):
    """The optimizer is the run's."""

    loss = keras.losses.MeanSquaredError()

    def model(self):
        return model()

    def dataset(self, worker_index, worker_count, seed):
        return dataset()


class OwnOptimizer(Regression):
    """It names its optimizer."""

    optimizer = keras.optimizers.AdamW(0.02, clipvalue=0.5)
