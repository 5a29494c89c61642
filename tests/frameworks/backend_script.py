"""A training script that runs on any of Keras' backends (KERAS_BACKEND): alone, on a server of its own, and then as a
worker of a job.

Arguments: the job's server, its workers, own index, folder for what is found, models. The first of the models is the
job's. A batch has as many samples whoever takes part.
"""

import logging
import sys
from pathlib import Path

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


def train(kind: str, out: Path, workers: int = 1, index: int = 0, server: str | None = None) -> None:
    made, (x, y), losses = model(kind), data(kind), Losses()
    told = {} if server is None else {"hosts": server, "task_index": index}
    job = psworker.keras.distribute(made, metrics="own", **told)
    part = slice(index, None, workers)
    with job:
        made.fit(
            *(x[part], y[part]),
            **{"batch_size": BATCH // workers, "epochs": EPOCHS, "shuffle": False, "verbose": 0},
            callbacks=[losses],
        )
    np.savez(out, *made.get_weights(), losses=losses.found)


def main(server: str, workers: int, index: int, folder: Path, kinds: list[str]) -> None:
    for kind in kinds:
        train(kind, folder / f"{kind}.npz")
    train(kinds[0], folder / "job.npz", workers, index, server)


if __name__ == "__main__":
    logging.getLogger("ps-worker").setLevel(logging.INFO)
    logging.basicConfig()
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
