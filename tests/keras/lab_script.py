"""A training script for `ps-lab run --script`. Arguments: epochs, and what goes wrong ("" for nothing)."""

import sys

import numpy as np

if "nothing" in sys.argv:  # before TensorFlow is loaded
    sys.exit()

import psworker.keras  # isort: skip  (before Keras)
import keras

epochs, fault = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
generator = np.random.default_rng(0)
x = generator.normal(size=(320, 12)).astype(np.float32)
y = (x.sum(1, keepdims=True) > 0).astype(np.float32)

model = keras.Sequential(
    [keras.Input((12,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
)
# TensorFlow would compile each of several models for most of the time.
eager = fault == "phases"
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), run_eagerly=eager)
job = psworker.keras.distribute(model)
i, n = job.session.rank, job.session.size
if fault == "raises" and i == 1:
    raise ValueError("no data for worker 1")
model.fit(x[i::n], y[i::n], epochs=epochs, verbose=2)
if fault == "phases":
    model.fit(x[i::n], y[i::n], epochs=epochs, verbose=0)
    # A layer frozen, another optimizer: another job, on the same servers.
    model.layers[0].trainable = False
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True), run_eagerly=eager)
    before = model.get_weights()
    model.fit(x[i::n], y[i::n], epochs=epochs, verbose=0)
    moved = [bool((a != b).any()) for a, b in zip(before, model.get_weights(), strict=True)]
    assert moved == [False, False, True, True]
    # Another model, as in K folds.
    model = keras.models.clone_model(model)
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True), run_eagerly=eager)
    job = psworker.keras.distribute(model)
    model.fit(x[i::n], y[i::n], epochs=epochs, verbose=0)
    if i == 1:
        raise ValueError("worker 1 fails behind its last fit")
print(f"worker {i} of {n} is at version {job.version}")
