"""A GAN that learns points on a circle: two optimizers, each a job with servers of its own. Three lines: (1) to (3).

python examples/fit_gan.py --steps 300
"""

import argparse

import psworker.keras  # (1), before keras  # isort: skip
import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
steps = parser.parse_args().steps

relu = {"activation": "relu"}
generator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(32, **relu), keras.layers.Dense(2)])
critic = keras.Sequential([keras.Input((2,)), keras.layers.Dense(32, **relu), keras.layers.Dense(1)])
judge = keras.losses.BinaryCrossentropy(from_logits=True)
angles = np.random.default_rng(0)

makes = psworker.keras.RemoteOptimizer(generator, keras.optimizers.Adam(0.002))  # (2) around it
judges = psworker.keras.RemoteOptimizer(critic, keras.optimizers.Adam(0.002))  # (3) around it

for step in range(steps):
    turn = angles.uniform(0, 2 * np.pi, 64)
    with tf.GradientTape(persistent=True) as tape:
        made = generator(tf.random.normal((64, 4)))
        real, fake = critic(np.stack([np.cos(turn), np.sin(turn)], axis=1)), critic(made)
        seen = judge(tf.ones_like(real), real) + judge(tf.zeros_like(fake), fake)
        fooled = judge(tf.ones_like(fake), fake)
    judges.apply(tape.gradient(seen, critic.trainable_variables), critic.trainable_variables)
    makes.apply(tape.gradient(fooled, generator.trainable_variables), generator.trainable_variables)
    if step % 100 == 0:
        print(f"step {step}: critic {float(seen):.3f}, generator {float(fooled):.3f}")

radius = np.linalg.norm(generator.predict(np.random.default_rng(1).normal(size=(256, 4)), verbose=0), axis=1)
print(f"distance from the centre {radius.mean():.2f} +- {radius.std():.2f}")
