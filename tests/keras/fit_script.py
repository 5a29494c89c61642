"""A training script as a user has one. PS_HOSTS or TF_CONFIG: the servers; the latter says the own index, too.

Arguments: kind, workers, own index, output.
"""

import os
import sys

import numpy as np

import psworker.keras  # isort: skip  (before Keras)
import keras

SAMPLES, FEATURES, BATCH, EPOCHS = 96, 12, 8, 3


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    x = generator.normal(2.0, 1.0, size=(SAMPLES, FEATURES)).astype(np.float32)
    return x, (x @ generator.normal(size=(FEATURES, 3)) > 0).astype(np.float32)


def model(kind: str) -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(4)
    first = [keras.layers.BatchNormalization()] if kind == "batchnorm" else []
    layers = [
        keras.Input((FEATURES,)),
        *first,
        keras.layers.Dense(16, activation="tanh"),
        keras.layers.Dense(3),
    ]
    made = keras.Sequential(layers)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    made.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, metrics=["mae"])
    return made


def main(kind: str, workers: int, index: int, out: str) -> None:
    made, (x, y) = model("dense" if kind == "dealt" else kind), data()
    if kind == "dealt":
        psworker.keras.distribute(made, task_index=index, sharding="units")
        # Somewhat odd: the last batch is smaller.
        made.fit(x[:-3], y[:-3], batch_size=BATCH, epochs=EPOCHS, verbose=0, validation_data=(x, y))
        np.savez(out, *made.get_weights())
        return
    job = psworker.keras.distribute(made, task_index=None if "TF_CONFIG" in os.environ else index)
    assert job.session.worker_index == index
    history = made.fit(
        x[index::workers], y[index::workers], batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0
    )
    assert len(history.history["loss"]) == EPOCHS
    np.savez(out, *made.get_weights())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
