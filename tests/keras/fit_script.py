"""A small model and its data."""

import keras
import numpy as np

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
