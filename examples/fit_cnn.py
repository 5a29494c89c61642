"""Handwritten digits with a CNN, in plain Keras. Two lines differ from a script without parameter servers: (1), (2).

python examples/fit_cnn.py
ps-lab run --script examples/fit_cnn.py --workers 2 --policy bounded -- --epochs 3
"""

import argparse

import psworker.keras  # (1), before keras  # isort: skip
import keras
import numpy as np
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
epochs = parser.parse_args().epochs

digits = load_digits()
x, y = (digits.images[..., np.newaxis] / 16).astype("float32"), digits.target
train, test = slice(0, 1500), slice(1500, None)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
psworker.keras.distribute(model)  # (2), after compile
history = model.fit(x[train], y[train], epochs=epochs, validation_data=(x[test], y[test]), verbose=2)
print(f"held-out accuracy {history.history['val_accuracy'][-1]:.3f}")
