"""A script of `model.fit` that stands still before its third epoch until there is a file, and before some after it.

ps-lab run --script tests/keras/gated_fit.py -- FOLDER MODEL GATES

MODEL: with "tables" it looks up rows on the servers. GATES: how many epochs begin with a gate.
"""

import sys
import threading
from pathlib import Path

import keras
import numpy as np

import psworker.keras

# For a gate, in seconds.
LOOK_EVERY = 0.02
FOLDER, MODEL = Path(sys.argv[1]), sys.argv[2]
GATED = range(2, 2 + int(sys.argv[3]))


class Gate(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        (FOLDER / f"epoch-{epoch}").touch()
        while epoch in GATED and not (FOLDER / f"gate-{epoch}").exists():
            threading.Event().wait(LOOK_EVERY)


keras.utils.set_random_seed(1)
dice = np.random.default_rng(0)
x = dice.normal(size=(480, 8)).astype(np.float32)
y = (x.sum(axis=1, keepdims=True) > 0).astype(np.float32)
first = [keras.layers.Input((8,))]
if MODEL == "tables":
    x = dice.integers(0, 200, (480, 8))
    y = (x.sum(axis=1, keepdims=True) > 800).astype(np.float32)
    first = [
        keras.layers.Input((8,), dtype="int64"),
        psworker.keras.RemoteEmbedding("words", 4, combiner="mean"),
    ]
model = keras.Sequential([*first, keras.layers.Dense(16, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile(optimizer=keras.optimizers.Adam(0.01, global_clipnorm=1.0), loss="binary_crossentropy")
psworker.keras.distribute(model)
model.fit(x, y, epochs=GATED.stop + 1, batch_size=16, verbose=0, callbacks=[Gate()])
