"""Samples per second of `model.fit`, plain and on one embedded server, in turns in one process.

python -m benchmarks.programs.fit_speed [rounds]
"""

import statistics
import sys
import time

import numpy as np

import psworker.keras  # isort: skip  (before Keras)
import keras


def mlp(width: int, depth: int, batch: int) -> tuple[keras.Model, np.ndarray, np.ndarray, int]:
    """A classifier of `depth` layers of `width` units."""
    layers = [keras.Input((width,)), *(keras.layers.Dense(width, activation="relu") for _ in range(depth))]
    return keras.Sequential([*layers, keras.layers.Dense(10)]), *_data((width,), batch), batch


def cnn(batch: int) -> tuple[keras.Model, np.ndarray, np.ndarray, int]:
    """The network of examples/digits_cnn.py."""
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
    return model, *_data((8, 8, 1), batch), batch


def _data(shape: tuple[int, ...], batch: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(40 * batch, *shape)).astype(np.float32), generator.integers(
        0, 10, 40 * batch
    )


CASES = {
    "MLP, 1 M parameters, batches of 128": lambda: mlp(512, 4, 128),
    "digits CNN, batches of 32": lambda: cnn(32),
    "digits CNN, batches of 256": lambda: cnn(256),
    "MLP, 17 M parameters, batches of 128": lambda: mlp(2048, 4, 128),
}


def measure(made: tuple[keras.Model, np.ndarray, np.ndarray, int], rounds: int) -> None:
    model, x, y, batch = made
    model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    other = keras.models.clone_model(model)
    other.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    seconds: dict[str, list[float]] = {"plain": [], "distributed": []}
    with psworker.keras.distribute(other):
        for turn in range(rounds + 1):
            for name, each in (("plain", model), ("distributed", other)):
                began = time.perf_counter()
                each.fit(x, y, batch_size=batch, verbose=0)
                if turn:  # the first traces
                    seconds[name].append(time.perf_counter() - began)
    ratios = [p / d for p, d in zip(seconds["plain"], seconds["distributed"], strict=True)]
    plain, ours = (statistics.median(seconds[name]) for name in ("plain", "distributed"))
    print(
        f"{model.count_params():>10,} parameters: plain {len(x) / plain:8.0f} samples/s ({plain / 40 * 1e3:.1f} ms a "
        f"step), distributed {len(x) / ours:8.0f}, ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


if __name__ == "__main__":
    for name, make in CASES.items():
        print(name, end=": ", flush=True)
        measure(make(), int(sys.argv[1]) if len(sys.argv) > 1 else 7)
