"""A loop of one's own, in numpy."""

import os
import sys
from pathlib import Path

import numpy as np

import psworker

sys.path.insert(0, str(Path(__file__).parent))
import data

start = {"w": np.zeros((data.WIDTH, 1), np.float32), "b": np.zeros(1, np.float32)}
with psworker.connect(os.environ["PS_HOSTS"], start) as session:
    for turn in session.turns(data.batches(session.rank)):
        x, y = turn.batch
        error = (x @ turn.weights["w"] + turn.weights["b"] - y) / data.SIZE
        turn.send({"w": x.T @ error, "b": error.sum(axis=0)}, samples=data.SIZE, loss=0.5)
