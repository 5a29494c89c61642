"""A training script that runs on any of Keras' backends (KERAS_BACKEND). PS_HOSTS: the servers; none: one of its own.

Arguments: workers, own index, folder for what is found, models. A batch has as many samples whoever takes part.
"""

import logging
import sys

import numpy as np

import psworker.keras  # isort: skip  (before Keras)
import keras

BATCH, EPOCHS = 12, 3


def data(kind: str) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    shape = (96, 8, 8, 2) if kind != "mlp" else (96, 12)
    return generator.normal(size=shape).astype(np.float32), generator.integers(0, 4, 96)


def model(kind: str) -> keras.Model:
    layers = keras.layers
    if kind == "mlp":
        made = keras.Sequential([keras.Input((12,)), layers.Dense(16, activation="tanh"), layers.Dense(4)])
    else:
        body = [layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(), layers.Flatten()]
        made = keras.Sequential([keras.Input((8, 8, 2)), *body, layers.Dense(4)])
    # Every backend draws other numbers.
    draw = np.random.default_rng(2)
    made.set_weights(
        [
            each if "moving" in weight.path or "gamma" in weight.path else 0.3 * draw.normal(size=each.shape)
            for weight, each in zip(made.weights, made.get_weights(), strict=True)
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
    return made


class Losses(keras.callbacks.Callback):
    """The loss of each batch, not their running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        done = float(logs["loss"]) * (batch + 1)
        self.found.append(done - sum(self.found[len(self.found) - batch :]))


def main(workers: int, index: int, out: str, kind: str) -> None:
    made, (x, y), losses = model(kind), data(kind), Losses()
    job = psworker.keras.distribute(made, task_index=index if workers > 1 else None, metrics="own")
    part = slice(index, None, workers)
    with job:
        made.fit(
            *(x[part], y[part]),
            **{"batch_size": BATCH // workers, "epochs": EPOCHS, "shuffle": False, "verbose": 0},
            callbacks=[losses],
        )
    np.savez(f"{out}/{kind}.npz", *made.get_weights(), losses=losses.found)


if __name__ == "__main__":
    logging.getLogger("ps-worker").setLevel(logging.INFO)
    logging.basicConfig()
    for each in sys.argv[4:]:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], each)
