"""A custom loop with `RemoteOptimizer`."""

import os
import sys
from pathlib import Path

import psworker.keras  # isort: skip
import keras
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent))
import data

keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((data.WIDTH,)), keras.layers.Dense(3), keras.layers.Dense(1)])
with psworker.keras.RemoteOptimizer(model, keras.optimizers.Adam(0.01)) as optimizer:
    for x, y in data.batches(int(os.environ["PS_TASK_INDEX"])):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), samples=data.SIZE)
