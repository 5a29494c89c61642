"""A training script as a user has one. TF_CONFIG says where the servers are, and the own index.

Arguments: workers, own index, output.
"""

import sys

import numpy as np

import psworker.keras  # isort: skip  (before Keras)
import keras

SAMPLES, FEATURES, BATCH, EPOCHS = 96, 12, 8, 3


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    x = generator.normal(2.0, 1.0, size=(SAMPLES, FEATURES)).astype(np.float32)
    return x, (x @ generator.normal(size=(FEATURES, 3)) > 0).astype(np.float32)


def model() -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(4)
    layers = [
        keras.Input((FEATURES,)),
        keras.layers.Dense(16, activation="tanh"),
        keras.layers.Dense(3),
    ]
    made = keras.Sequential(layers)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    made.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, metrics=["mae"])
    return made


def main(workers: int, index: int, out: str) -> None:
    made, (x, y) = model(), data()
    job = psworker.keras.distribute(made)
    assert job.session.worker_index == index
    history = made.fit(
        x[index::workers], y[index::workers], batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0
    )
    assert len(history.history["loss"]) == EPOCHS
    np.savez(out, *made.get_weights())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
