"""Keras's optimizers on one variable, on CPU: `keras_optimizers.py ELEMENTS THREADS`.

{"do": "prepare", "name": ..., "knobs": {...}} makes the optimizer and traces its step;
{"do": "step", "seconds": s} repeats it for about s seconds. Answers {"seconds": of one step}.
"""

import json
import os
import sys
import time
from typing import Any

os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}

import keras
import numpy as np
import tensorflow as tf


def traced(kind: str, knobs: dict[str, Any], elements: int) -> tuple[Any, list[Any]]:
    """The step as Keras's own training loop runs it: inside a tf.function, on a variable of `elements`."""
    weights = keras.Variable(np.zeros(elements, np.float32))
    optimizer = getattr(keras.optimizers, kind)(**knobs)
    optimizer.build([weights])
    gradient = tf.constant(np.random.default_rng(0).standard_normal(elements).astype(np.float32))

    @tf.function
    def step() -> None:
        optimizer.apply([gradient])

    step()
    return step, [weights, optimizer]


def main(elements: int, threads: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    step, kept = None, []
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "prepare":
            kept.clear()
            step, kept = traced(command["name"], command["knobs"], elements)
            print(json.dumps({"seconds": 0.0}), flush=True)
        elif step is not None:
            begin, steps = time.perf_counter(), 0
            while steps < 2 or time.perf_counter() - begin < command["seconds"]:
                step()
                steps += 1
            print(json.dumps({"seconds": (time.perf_counter() - begin) / steps}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
