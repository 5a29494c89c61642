"""The dense part of the model in TensorFlow, the same for all peers."""

from typing import Any

import tensorflow as tf


def loss_of(dense: list[Any], embedded: Any, numbers: Any, labels: Any) -> Any:
    """Return the mean loss. `dense`: the variables of `load.weights`. `embedded`: [batch, features * dim]."""
    kernel, bias, last, shift = dense
    hidden = tf.nn.relu(tf.concat([embedded, numbers], 1) @ kernel + bias)
    return tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=hidden @ last + shift)
    )
