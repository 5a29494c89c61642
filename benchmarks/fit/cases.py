"""Models and data of `scripts/bench fit`."""

from collections.abc import Callable
from typing import Any

import numpy as np

# A Keras model, data, labels, and the size of a batch.
Case = tuple[Any, np.ndarray, np.ndarray, int]


def mlp(width: int, depth: int, batch: int, steps: int) -> Case:
    """A classifier of `depth` layers of `width` units."""
    import keras

    layers = [keras.Input((width,)), *(keras.layers.Dense(width, activation="relu") for _ in range(depth))]
    return keras.Sequential([*layers, keras.layers.Dense(10)]), *_data((width,), batch, steps), batch


def cnn(batch: int, steps: int) -> Case:
    """The network of examples/digits_cnn.py."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(10),
        ]
    )
    return model, *_data((8, 8, 1), batch, steps), batch


def _data(shape: tuple[int, ...], batch: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    count = steps * batch
    return generator.normal(size=(count, *shape)).astype(np.float32), generator.integers(0, 10, count)


# As many steps as a fit needs to be more than its beginning.
CASES: dict[str, Callable[[], Case]] = {
    "MLP, 1 M parameters, batches of 128": lambda: mlp(512, 4, 128, 100),
    "digits CNN, batches of 32": lambda: cnn(32, 400),
    "digits CNN, batches of 256": lambda: cnn(256, 100),
    "MLP, 1 M parameters, batches of 512": lambda: mlp(512, 4, 512, 60),
    "MLP, 17 M parameters, batches of 128": lambda: mlp(2048, 4, 128, 30),
}
