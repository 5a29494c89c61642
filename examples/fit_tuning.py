"""Fine-tuning a .keras file: its first layer stays frozen, the rest learns another task. Two lines: (1), (2).

python examples/fit_tuning.py --model digits.keras --epochs 2
"""

import argparse
from pathlib import Path

import psworker.keras  # (1), before keras  # isort: skip
import keras
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--model", type=Path, default=Path("digits.keras"), help="made if it is not there")
parser.add_argument("--epochs", type=int, default=3)
arguments = parser.parse_args()

digits = load_digits()
x, y = (digits.data / 16).astype("float32"), digits.target
if not arguments.model.exists():
    first = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    )
    first.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    first.fit(x[:900], y[:900], epochs=3, verbose=2)
    first.save(arguments.model)

base = keras.models.load_model(arguments.model)
base.layers[0].trainable = False
model = keras.Sequential([keras.Input((64,)), base.layers[0], keras.layers.Dense(1, activation="sigmoid")])
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy"])
psworker.keras.distribute(model)  # (2), after compile
model.fit(x[900:], y[900:] % 2, epochs=arguments.epochs, verbose=2)
