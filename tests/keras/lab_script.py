"""A training script for `ps-lab run --script`. Arguments: epochs, and what goes wrong ("" for nothing)."""

import os
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
width = 9 if fault == "other model" and os.environ["PS_TASK_INDEX"] == "1" else 8

model = keras.Sequential(
    [keras.Input((12,)), keras.layers.Dense(width, activation="relu"), keras.layers.Dense(1)]
)
optimizer = keras.optimizers.Muon() if fault == "muon" else "adam"
model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
job = psworker.keras.distribute(model)
i, n = job.session.worker_index, job.session.worker_count
if fault == "raises" and i == 1:
    raise ValueError("no data for worker 1")
model.fit(x[i::n], y[i::n], epochs=epochs, verbose=2)
print(f"worker {i} of {n} is at version {job.version}")
