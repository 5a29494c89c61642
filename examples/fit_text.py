"""Which of two made-up languages a text is in, with an LSTM. Two lines differ from plain Keras: (1), (2).

python examples/fit_text.py --epochs 2
"""

import argparse

import psworker.keras  # (1), before keras  # isort: skip
import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
epochs = parser.parse_args().epochs

generator = np.random.default_rng(0)
syllables = np.array([["ka", "ri", "mo", "ta"], ["ka", "lu", "ne", "ta"]])
labels = generator.integers(0, 2, 512)
texts = ["".join(generator.choice(syllables[label], 12)) for label in labels]

letters = {letter: number + 1 for number, letter in enumerate(sorted(set("".join(texts))))}
x = np.array([[letters[letter] for letter in text] for text in texts])

model = keras.Sequential(
    [
        keras.Input((x.shape[1],)),
        keras.layers.Embedding(len(letters) + 1, 16),
        keras.layers.LSTM(16),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy"])
psworker.keras.distribute(model)  # (2), after compile
stopping = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
model.fit(x, labels, epochs=epochs, validation_split=0.2, callbacks=[stopping], verbose=2)
