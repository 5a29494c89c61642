"""One measurement of `scripts/gpu`, in a process of its own: prints one JSON line.

python -m benchmarks.gpu.child loop torch cuda:0 HOSTS float32    steps of a loop, alone where HOSTS is ""
python -m benchmarks.gpu.child copies torch cuda:0 "" bfloat16    a payload out and a version in
python -m benchmarks.gpu.child fit jax                            Keras' fit, plain and on a server of its own
python -m benchmarks.gpu.child update 4                           a server's update with 4 threads
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.gpu.models import LARGE, LOOPS, SMALL, Size
from pswire.model.plan import VariableSpec, make_plan
from psworker.backends import cut, payloads

STEPS, WARM_UP = 20, 5


def size_on(device: str) -> Size:
    return SMALL if device.startswith("cpu") else LARGE


def seconds_of(work: Callable[[], object], times: int = 7) -> float:
    """The median, behind one that warms up."""
    work()
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def loop(framework: str, device: str, hosts: str, wire: str) -> dict[str, Any]:
    """Seconds of a step."""
    made = LOOPS[framework](size_on(device), device, hosts, wire)
    for number in range(WARM_UP):
        made.step(number)
    made.wait()
    begin = time.perf_counter()
    for number in range(STEPS):
        made.step(number)
    made.wait()
    seconds = (time.perf_counter() - begin) / STEPS
    made.close()
    return {"seconds": seconds, "device": made.device}


def copies(framework: str, device: str, hosts: str, wire: str) -> dict[str, Any]:
    """GB/s of a payload to the host and of a version to the device, of a plain pinned copy each, and the share of
    copying or writing, whichever takes less, that the other hides."""
    width = 256 if device.startswith("cpu") else 2048
    shapes = [(width, width)] * 16 + [(width,)] * 32
    specs = [VariableSpec(f"v{number:02}", shape) for number, shape in enumerate(shapes)]
    plan, dtype = make_plan(specs, 1), np.dtype(ml_dtypes.bfloat16 if wire == "bfloat16" else wire)
    values = [np.ones(shape, np.float32) for shape in shapes]
    model, arrays, plain_out, plain_in, wait = _WAYS[framework](specs, values, device, dtype)
    target = np.zeros(plan.shards[0].elements, dtype)
    source, nbytes = np.ones_like(target), target.nbytes

    def out() -> None:
        [payload] = payloads(plan, model, arrays, dtype)
        payload.write(target)  # type: ignore[union-attr]

    def into() -> None:
        model.put(cut(plan, [source]))
        wait()

    took = {"out": seconds_of(out), "in": seconds_of(into)}
    plain = {"out": seconds_of(plain_out), "in": seconds_of(plain_in)}
    write = seconds_of(lambda: np.copyto(target, source))
    hidden = (plain["out"] + write - took["out"]) / min(plain["out"], write)
    return {
        "mebibytes": nbytes / 2**20,
        **{f"{way}_gbs": nbytes / took[way] / 1e9 for way in took},
        **{f"pinned_{way}_gbs": nbytes / plain[way] / 1e9 for way in plain},
        "hidden": hidden,
    }


def _torch_way(specs: Any, values: Any, device: str, dtype: Any) -> Any:
    import torch

    from psworker.backends.torch import TorchModel

    module = torch.nn.Module()
    for spec, value in zip(specs, values, strict=True):
        module.register_parameter(spec.name, torch.nn.Parameter(torch.tensor(value, device=device)))
    arrays = [torch.tensor(value, device=device) for value in values]
    pinned = device.startswith("cuda")
    wide = torch.bfloat16 if dtype.itemsize == 2 else torch.float32
    there = torch.ones(sum(value.size for value in values), dtype=wide, device=device)
    here = torch.empty(there.shape, dtype=wide, pin_memory=pinned)

    def wait() -> None:
        if pinned:
            torch.cuda.synchronize()

    def copied(target: Any, source: Any) -> None:
        target.copy_(source, non_blocking=True)
        wait()

    model = TorchModel(module, list(module.parameters()))
    return model, arrays, lambda: copied(here, there), lambda: copied(there, here), wait


def _jax_way(specs: Any, values: Any, device: str, dtype: Any) -> Any:
    import jax
    import jax.numpy as jnp

    from psworker.backends.jax import JaxModel

    arrays = [jnp.asarray(value) for value in values]
    model = JaxModel({spec.name: jnp.asarray(value) for spec, value in zip(specs, values, strict=True)})
    there = jnp.ones(sum(value.size for value in values), dtype)
    kinds = there.sharding, there.sharding.with_memory_kind("pinned_host")
    here = jax.device_put(there, kinds[1])

    def copied(source: Any, where: Any) -> None:
        jax.block_until_ready(jax.device_put(source, where, may_alias=False))

    return (
        *(model, arrays, lambda: copied(there, kinds[1]), lambda: copied(here, kinds[0])),
        lambda: jax.block_until_ready(model.params),
    )


_WAYS = {"torch": _torch_way, "jax": _jax_way}


def fit(framework: str, *_: str) -> dict[str, Any]:
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
    with psworker.keras.distribute(other) as job:
        for turn in range(4):
            for name, each in (("plain", model), ("distributed", other)):
                begin = time.perf_counter()
                each.fit(x, y, batch_size=batch, verbose=0)
                if turn:
                    found[name].append((time.perf_counter() - begin) / (len(x) // batch))
        version = job.version
    return {**{name: statistics.median(each) for name, each in found.items()}, "version": version}


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    measures: dict[str, Callable[..., dict[str, Any]]] = {
        "loop": loop,
        "copies": copies,
        "fit": fit,
    }
    told = measures[what](*arguments)
    print(json.dumps(told), flush=True)
