"""One measurement of `scripts/gpu`, in a process of its own: prints one JSON line.

python -m benchmarks.gpu.child loop torch cuda:0 HOSTS float32    steps of a loop, alone where HOSTS is ""
python -m benchmarks.gpu.child fit jax                            Keras' fit, plain and on a server of its own
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.models import LARGE, LOOPS, SMALL

STEPS, WARM_UP = 20, 5


def loop(framework: str, device: str, hosts: str, wire: str) -> dict[str, Any]:
    """Seconds of a step."""
    size = SMALL if device.startswith("cpu") else LARGE
    made = LOOPS[framework](size, device, hosts, wire)
    for _ in range(WARM_UP):
        made.step()
    made.wait()
    begin = time.perf_counter()
    for _ in range(STEPS):
        made.step()
    made.wait()
    seconds = (time.perf_counter() - begin) / STEPS
    made.close()
    return {"seconds": seconds, "device": made.device}


def fit(framework: str) -> dict[str, Any]:
    """Seconds of a step of `fit`, plain and distributed, in turns."""
    os.environ["KERAS_BACKEND"] = framework
    import psworker.keras  # isort: skip  (before Keras)
    import keras

    from benchmarks.fit.cases import CASES

    model, x, y, batch = CASES["MLP, 1 M parameters, batches of 512"]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    other = keras.models.clone_model(model)
    found: dict[str, list[float]] = {"plain": [], "distributed": []}
    for each in (model, other):
        each.compile(optimizer="adam", loss=loss)
    with psworker.keras.distribute(other):
        for turn in range(4):
            for name, each in (("plain", model), ("distributed", other)):
                begin = time.perf_counter()
                each.fit(x, y, batch_size=batch, verbose=0)
                if turn:
                    found[name].append((time.perf_counter() - begin) / (len(x) // batch))
    return {name: statistics.median(each) for name, each in found.items()}


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    measures: dict[str, Callable[..., dict[str, Any]]] = {"loop": loop, "fit": fit}
    print(json.dumps(measures[what](*arguments)), flush=True)
