"""One process of `benchmarks.programs.strategies`: the digits CNN under one way to train. Prints one JSON line.

Arguments: way ("plain", "mirrored", "multi-worker" or "servers"), epochs, batch of one replica. TF_CONFIG, or PS_HOSTS
and PS_TASK_INDEX, say the rest.
"""

import json
import os
import sys
import time
from contextlib import nullcontext
from typing import Any

import numpy as np

import psworker.keras  # isort: skip  (before Keras)
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

REPLICAS = 2


class Clock(keras.callbacks.Callback):
    """Seconds of each epoch, with its validation."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._began)


def strategy_of(way: str) -> Any:
    if way == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(REPLICAS)]
        )
        return tf.distribute.MirroredStrategy([f"/cpu:{n}" for n in range(REPLICAS)])
    return tf.distribute.MultiWorkerMirroredStrategy() if way == "multi-worker" else None


def build() -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.002), loss, metrics=["accuracy"])
    return model


def loop(strategy: Any, model: Any, data: Any, epochs: int) -> list[float]:
    """What `fit` would do under MultiWorkerMirroredStrategy, if it could: seconds of each epoch."""
    shared, seconds = strategy.experimental_distribute_dataset(data), []
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            # Keras' optimizer adds up the replicas' gradients.
            loss = model.compute_loss(x, y, model(x, training=True)) / REPLICAS
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=batch), axis=None)

    for _ in range(epochs):
        began = time.perf_counter()
        for batch in shared:
            step(batch)
        seconds.append(time.perf_counter() - began)
    return seconds


def main(way: str, epochs: int, batch: int) -> None:
    strategy = strategy_of(way)
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x = (digits.images[order, ..., np.newaxis] / 16).astype(np.float32)
    y = digits.target[order]
    held, x, y = (x[1536:], y[1536:]), x[:1536], y[:1536]
    index = 0
    with strategy.scope() if strategy is not None else nullcontext():
        model = build()
    if way == "servers":
        index = int(os.environ["PS_TASK_INDEX"])
        psworker.keras.distribute(model)
        x, y = x[index::REPLICAS], y[index::REPLICAS]
    whole = batch * REPLICAS if strategy is not None or way == "plain" else batch
    clock = Clock()
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=index).batch(whole)
    if way == "multi-worker":
        clock.seconds = loop(strategy, model, data, epochs)
    else:
        model.fit(data, epochs=epochs, verbose=0, callbacks=[clock])
    accuracy = float(np.mean(np.argmax(model(held[0]), axis=1) == held[1]))
    print(json.dumps({"way": way, "seconds": clock.seconds, "accuracy": accuracy}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
