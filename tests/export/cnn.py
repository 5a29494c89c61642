"""A small convolutional network with BatchNorm; a second job trains the same model with a loss function of its own."""

import sys
from pathlib import Path

import keras
import tensorflow as tf

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


class Bare(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.zeros([64, 10]), name="w")

    @tf.function(input_signature=[tf.TensorSpec([None, 64])])
    def __call__(self, x):
        return x @ self.w


class OwnLoss(CNN):
    """No Keras model: a tf.Module."""

    def model(self):
        return Bare()

    def loss(self, model, batch):
        x, y = batch
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x)))

    def heldout(self):
        return None
