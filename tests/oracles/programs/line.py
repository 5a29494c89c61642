"""A job."""

import sys
from pathlib import Path

import keras

from psworker import Job

sys.path.insert(0, str(Path(__file__).parent))
import data


class Line(Job):
    loss = "mse"

    def model(self):
        layers = [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((data.WIDTH,)), *layers])

    def dataset(self, worker_index, worker_count, seed):
        return list(data.batches(worker_index))
