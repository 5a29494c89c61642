"""A convolutional network with BatchNorm and dropout on handwritten digits.

BatchNorm's moving averages are not trained: the servers mix the values that
workers end their batches with. `tf.data` and a loss and an evaluation of
one's own are shown beside.
"""

import keras
import numpy as np
import tensorflow as tf
from digits_data import digits

from psworker import Job


class DigitsCNN(Job):
    batch_size: int = 32  # per worker
    dropout: float = 0.25

    def model(self):
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((64,)),
                layers.Reshape((8, 8, 1)),
                layers.Conv2D(16, 3, padding="same", use_bias=False),
                layers.BatchNormalization(momentum=0.9),
                layers.ReLU(),
                layers.MaxPool2D(),
                layers.Conv2D(32, 3, padding="same", use_bias=False),
                layers.BatchNormalization(momentum=0.9),
                layers.ReLU(),
                layers.GlobalAveragePooling2D(),
                layers.Dropout(self.dropout),
                layers.Dense(10),
            ]
        )

    def dataset(self, worker_index, worker_count, seed):
        mine = tf.data.Dataset.from_tensor_slices(digits("train")).shard(worker_count, worker_index)
        return mine.shuffle(2000, seed=seed).batch(self.batch_size).prefetch(1)

    def loss(self, model, batch):
        images, labels = batch
        logits = model(images, training=True)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    def evaluate(self, model):
        images, labels = digits("heldout")
        guesses = np.argmax(model(images, training=False), axis=1)
        return {"accuracy": float(np.mean(guesses == labels))}
