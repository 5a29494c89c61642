"""A worker that learns handwritten digits, and takes its time: so that you can kill a server meanwhile."""

import os
import time

import numpy as np
from sklearn.datasets import load_digits

import psworker

STEPS, BATCH = 300, 32
SECONDS = float(os.environ.get("STEP_SECONDS", "0.05"))

images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype(np.float32), labels.astype(np.int64)
start = {"w": np.zeros((64, 10), np.float32), "b": np.zeros(10, np.float32)}

with psworker.connect(None, start) as session:
    for turn in session.turns(range(STEPS)):
        weights = turn.weights
        random = np.random.default_rng([session.info.seed, session.rank, turn.batch])
        chosen = random.integers(0, len(images), BATCH)
        x, y = images[chosen], labels[chosen]
        scores = x @ weights["w"] + weights["b"]
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = odds / odds.sum(axis=1, keepdims=True)
        loss = float(-np.log(error[np.arange(BATCH), y]).mean())
        error[np.arange(BATCH), y] -= 1
        time.sleep(SECONDS)
        turn.send({"w": x.T @ error / BATCH, "b": error.mean(axis=0)}, samples=BATCH, loss=loss)
