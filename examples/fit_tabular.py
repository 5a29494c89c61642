"""A table with numbers and categories, normalised, with a plateau rule for the learning rate. Two lines: (1), (2).

python examples/fit_tabular.py --epochs 4
"""

import argparse

import psworker.keras  # (1), before keras  # isort: skip
import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
epochs = parser.parse_args().epochs

generator = np.random.default_rng(0)
numbers = generator.normal([20.0, 1000.0], [5.0, 300.0], size=(800, 2)).astype("float32")
colours = generator.integers(0, 3, size=(800, 1))
price = (3 * numbers[:, :1] + 0.05 * numbers[:, 1:] + 10 * colours).astype("float32")

measured = keras.layers.Normalization()
measured.adapt(numbers)
inputs = {"numbers": keras.Input((2,)), "colour": keras.Input((1,), dtype="int32")}
seen = keras.layers.Flatten()(keras.layers.Embedding(3, 2)(inputs["colour"]))
hidden = keras.layers.Dense(32, activation="relu")(
    keras.layers.Concatenate()([measured(inputs["numbers"]), seen])
)
model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
model.compile(optimizer=keras.optimizers.AdamW(0.05, weight_decay=0.001), loss="mse", metrics=["mae"])
psworker.keras.distribute(model)  # (2), after compile
plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1)
model.fit({"numbers": numbers, "colour": colours}, price, epochs=epochs, callbacks=[plateau], verbose=2)
