"""The chief of a ParameterServerStrategy cluster, steered by the benchmark.

Commands: connect {servers, workers, own}, then as in ours.py. A step is one tf.function, scheduled on a worker: it
reads all weights once, and applies a ready gradient by plain SGD where each variable lives, which costs no further
traffic (`assign_sub(rate * g)` would).
"""

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import tensorflow as tf

from benchmarks.programs.json_commands import serve


@dataclass
class Running:
    """A prepared load: the traced step and the data of every worker."""

    step: Callable[[Any], Any]
    data: Any
    # Steps in one scheduled function.
    pack: int = 1


class Chief:
    """The coordinator of one cluster."""

    def __init__(self) -> None:
        self._loads: dict[str, Running] = {}

    def connect(self, servers: list[str], workers: list[str], own: str) -> None:
        """`own`: the address of this host that the others reach."""
        spec = tf.train.ClusterSpec({"ps": servers, "worker": workers, "chief": [f"{own}:0"]})
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            spec, task_type="chief", task_id=0, rpc_layer="grpc"
        )
        self._workers = len(workers)
        self._strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)

    def prepare(self, load: str, shapes: list[list[int]]) -> None:
        with self._strategy.scope():
            variables = [tf.Variable(tf.zeros(shape), name=f"v{i}") for i, shape in enumerate(shapes)]

        @tf.function
        def step(iterator: Any) -> Any:
            # One read each: everything after works on the worker's copy.
            weights = [variable.read_value() for variable in variables]
            touched, found = _communication(weights, next(iterator))
            for variable, gradient in zip(variables, found, strict=True):
                with tf.device(variable.device):
                    tf.raw_ops.ResourceApplyGradientDescent(
                        var=variable.handle, alpha=tf.constant(0.001), delta=gradient
                    )
            return touched

        data = iter(self._coordinator.create_per_worker_dataset(lambda: _ready_gradients(shapes)))
        self._loads[load] = Running(step, data)
        # Traced for every worker, connections warm.
        self.measure(load, 2)

    def measure(self, load: str, steps: int) -> dict[str, Any]:
        """`steps` per worker, rounded up to whole functions."""
        running = self._loads[load]
        calls = -(-steps // running.pack) * self._workers
        begin = time.monotonic()
        for _ in range(calls):
            self._coordinator.schedule(running.step, args=(running.data,))
        self._coordinator.join()
        return {"begin": begin, "end": time.monotonic(), "steps": calls * running.pack}

    def release(self, load: str) -> None:
        del self._loads[load]
        gc.collect()

    def serve(self, prepare: Callable[..., None]) -> NoReturn:
        """Answer the benchmark's commands until the input ends, then end this process."""
        serve(
            {
                "connect": self.connect,
                "prepare": prepare,
                "measure": self.measure,
                "release": self.release,
            }
        )
        # The coordinator's threads wait for work for ever.
        os._exit(0)


def _communication(weights: list[Any], ready: Any) -> tuple[Any, list[Any]]:
    """The gradients that lie ready on the worker, but not before all weights are there.

    Touching one element needs the whole tensor on the worker, and costs
    nothing. The touched values must be returned: TensorFlow's optimizer
    removes what is only waited for, and the transfer with it.
    """
    touched = tf.add_n([tf.reshape(weight, [-1])[0] for weight in weights])
    with tf.control_dependencies([touched]):
        return touched, [tf.identity(gradient) for gradient in ready]


def _ready_gradients(shapes: list[list[int]]) -> Any:
    """The same buffers over and over: a cached element is handed out, not copied."""
    one = tf.data.Dataset.range(1).map(lambda _: tuple(tf.fill(shape, 1e-6) for shape in shapes))
    return one.cache().repeat()


if __name__ == "__main__":
    chief = Chief()
    chief.serve(chief.prepare)
