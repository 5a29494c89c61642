"""Linear regression with bare `tf.Variable`s: no Keras model, no layers.

ps-worker --ps-hosts 127.0.0.1:7070 --job examples/linear.py:Linear
"""

import numpy as np
import tensorflow as tf

from psworker import Job


class Linear(Job):
    features: int = 20
    samples: int = 4096
    noise: float = 0.1
    batch_size: int = 64  # per worker

    def data(self):
        """(x [n, features], y [n]) of one fixed, known law; the same in every worker."""
        random = np.random.default_rng(7)
        law = random.normal(size=self.features)
        x = random.normal(size=(self.samples, self.features))
        y = x @ law + 3.0 + self.noise * random.normal(size=self.samples)
        return x.astype(np.float32), y.astype(np.float32)

    def model(self):
        return {"weights": tf.Variable(tf.zeros([self.features])), "bias": tf.Variable(0.0)}

    def dataset(self, worker_index, worker_count, seed):
        x, y = (part[worker_index::worker_count] for part in self.data())
        return [
            (x[start : start + self.batch_size], y[start : start + self.batch_size])
            for start in range(0, len(x), self.batch_size)
        ]

    def loss(self, model, batch):
        x, y = batch
        predicted = tf.linalg.matvec(x, model["weights"]) + model["bias"]
        return tf.reduce_mean(tf.square(predicted - y))

    def evaluate(self, model):
        return {"mse": float(self.loss(model, self.data()))}
