"""A small classifier and its data, for `fit` in two workers."""

import threading
import time
from pathlib import Path

import keras
import numpy as np

SAMPLES, FEATURES, BATCH, EPOCHS = 96, 12, 8, 3


def data(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    return x, (x[:, :3].sum(1) > 0).astype(np.float32)[:, None]


def model() -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(4)
    made = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    made.compile(keras.optimizers.SGD(0.1), loss=loss, metrics=["mae"], run_eagerly=True)
    return made


def wait_for(path: Path) -> None:
    """Wait until the other worker has written it. Raises TimeoutError."""
    deadline, pause = time.monotonic() + 100.0, threading.Event()
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody wrote {path.name}")
        pause.wait(0.01)
