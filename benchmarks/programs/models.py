"""Models for real training steps, as functions of a list of weights: the same graph for every peer.

The only module beside programs/ that imports TensorFlow; only children import it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.loads import MODEL_SHAPES, Shapes

Batch = tuple[np.ndarray, np.ndarray]  # float32 [samples, features], int32 [samples]


@dataclass(frozen=True)
class Model:
    """`loss(weights, batch)` is a batch's mean loss; `weights` come in the order of `shapes`."""

    shapes: Shapes
    loss: Callable[[Sequence[Any], Any], Any]
    batch: Callable[[], Batch]

    def initial(self) -> list[np.ndarray]:
        """Glorot-like values, biases zero; the same in every process."""
        random = np.random.default_rng(0)
        return [
            random.normal(0, 1 / math.sqrt(math.prod(shape[:-1])), shape).astype(np.float32)
            if len(shape) > 1
            else np.zeros(shape, np.float32)
            for shape in self.shapes
        ]


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def _chain(weights: Sequence[Any], batch: Any) -> Any:
    """A plain multilayer perceptron."""
    x, labels = batch
    for index in range(0, len(weights) - 2, 2):
        x = tf.nn.relu(tf.matmul(x, weights[index]) + weights[index + 1])
    return _cross_entropy(tf.matmul(x, weights[-2]) + weights[-1], labels)


def _residual(weights: Sequence[Any], batch: Any) -> Any:
    """Many narrow layers, each added to its input."""
    x, labels = batch
    x = tf.matmul(x, weights[0]) + weights[1]
    for index in range(2, len(weights) - 2, 2):
        x += 0.1 * tf.nn.relu(tf.matmul(x, weights[index]) + weights[index + 1])
    return _cross_entropy(tf.matmul(x, weights[-2]) + weights[-1], labels)


def _convolutional(weights: Sequence[Any], batch: Any) -> Any:
    """Two convolutions over 8 x 8 pixels, then one dense layer."""
    x, labels = batch
    x = tf.reshape(x, [-1, 8, 8, 1])
    x = tf.nn.relu(tf.nn.conv2d(x, weights[0], 1, "SAME") + weights[1])
    x = tf.nn.max_pool2d(x, 2, 2, "SAME")
    x = tf.nn.relu(tf.nn.conv2d(x, weights[2], 1, "SAME") + weights[3])
    x = tf.reshape(x, [-1, 4 * 4 * 32])
    return _cross_entropy(tf.matmul(x, weights[4]) + weights[5], labels)


def noise(samples: int, features: int) -> Batch:
    """A batch that looks like data to a clock."""
    random = np.random.default_rng(1)
    x = random.normal(size=(samples, features)).astype(np.float32)
    return x, random.integers(0, 10, samples).astype(np.int32)


def digits() -> Batch:
    """The first 32 of scikit-learn's handwritten digits."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images[:32] / 16).astype(np.float32), labels[:32].astype(np.int32)


MODELS = {
    "mlp": Model(MODEL_SHAPES["mlp"], _chain, lambda: noise(32, 1024)),
    "cnn": Model(MODEL_SHAPES["cnn"], _convolutional, digits),
    "deep": Model(MODEL_SHAPES["deep"], _residual, lambda: noise(32, 32)),
}
