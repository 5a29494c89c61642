"""Models to compile and compare; training steps of one's own, as users of each of Keras' backends write them."""

from typing import Any

import keras
import numpy as np

BACKEND = keras.backend.backend()


def compiled(model: Any, optimizer: Any = "adam", **more: Any) -> Any:
    """A classifier by logits."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, **{"loss": loss, "metrics": ["accuracy"], **more})
    return model


def assert_same(one: Any, other: Any, atol: float = 0.0) -> None:
    """Two models have the same weights."""
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


class OwnStep(keras.Model):  # type: ignore[misc]
    """A training step of one's own, which scales gradients."""

    def __init__(self, units: int = 4, share: float = 0.5) -> None:
        super().__init__()
        self.share, self.dense = share, keras.layers.Dense(units)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def loss_of(self, x: Any, y: Any, predicted: Any) -> Any:
        return self.compute_loss(x, y, predicted)

    def before(self) -> None:
        """At the beginning of a step, where the weights are in the model."""

    def more(self) -> dict[str, Any]:
        """What the logs have beside the loss."""
        return {}

    def train_step(self, *args: Any) -> Any:
        return {"tensorflow": self._tape, "torch": self._backward, "jax": self._stateless}[BACKEND](*args)

    def _tape(self, data: Any) -> Any:
        import tensorflow as tf

        self.before()
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply([self.share * each for each in gradients], self.trainable_variables)
        return {"loss": loss, **self.more()}

    def _backward(self, data: Any) -> Any:
        import torch

        with torch.no_grad():
            self.before()
        x, y = data
        self.zero_grad()
        loss = self.loss_of(x, y, self(x, training=True))
        loss.backward()
        with torch.no_grad():
            gradients = [self.share * each.value.grad for each in self.trainable_variables]
            self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, **self.more()}

    def _stateless(self, state: Any, data: Any) -> Any:
        import jax

        trained, others, memory, metrics = state
        x, y = data
        others = self._moved(self.before, trained, others)

        def loss_of(trained: Any, others: Any) -> Any:
            predicted, others = self.stateless_call(trained, others, x)
            return self.loss_of(x, y, predicted), others

        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained, others)
        gradients = [self.share * each for each in gradients]
        trained, memory = self.optimizer.stateless_apply(memory, gradients, trained)
        return {"loss": loss}, (trained, others, memory, metrics)

    def _moved(self, move: Any, trained: Any, others: Any) -> Any:
        """The values of what is not trained behind `move`."""
        mapping = [*zip(self.trainable_variables, trained, strict=True)]
        mapping += zip(self.non_trainable_variables, others, strict=True)
        with keras.StatelessScope(state_mapping=mapping) as scope:
            move()
        found = [scope.get_current_value(each) for each in self.non_trainable_variables]
        return [old if new is None else new for old, new in zip(others, found, strict=True)]


class Teacher(OwnStep):
    """A mean teacher: a copy, not trained, that follows what is trained, from the weights as a step finds them."""

    def __init__(self) -> None:
        super().__init__(1, share=1.0)
        self.teacher = keras.layers.Dense(1, trainable=False)

    def build(self, shape: Any) -> None:
        self.dense.build(shape)
        self.teacher.build(shape)

    def loss_of(self, x: Any, y: Any, predicted: Any) -> Any:
        return keras.ops.mean((predicted - 1.0) ** 2)

    def more(self) -> dict[str, Any]:
        return {"taken": self.optimizer.iterations}

    def before(self) -> None:
        for mean, weight in zip(self.teacher.weights, self.dense.weights, strict=True):
            mean.assign(0.5 * mean + 0.5 * weight)


def teacher() -> Any:
    keras.utils.set_random_seed(5)
    model = Teacher()
    model.build((None, 8))
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    return model
