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
    for number, (x, y) in enumerate(data.batches(session.worker_index)):
        grant = session.ready()
        weights = session.pull(grant)
        error = (x @ weights["w"] + weights["b"] - y) / data.SIZE
        session.push(grant, {"w": x.T @ error, "b": error.sum(axis=0)})
        session.commit(grant, samples=data.SIZE, loss=0.5, batch=number)
    session.done()
