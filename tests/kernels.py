"""Compile, or load, what most servers and workers run.

Once before processes begin that would otherwise all compile the same at the same time: `python -m tests.kernels`.
"""

import time

from psserver.optimizers import build
from psserver.shard import Shard
from pswire.model.plan import VariableSpec, make_plan
from pswire.model.tables import TableSpec, compiled_batches
from pswire.transport.blocks import kernels

OPTIMIZERS = ("sgd", "momentum", "adagrad", "adam")


def main() -> None:
    began = time.monotonic()
    compiled_batches()
    kernels()
    plan = make_plan([VariableSpec("x", (1,))], 1, [TableSpec("t", 1)])
    for name in OPTIMIZERS:
        Shard(plan, 0, build({"name": name})).compile()
    print(
        f"test: what servers and workers compute with is compiled ({time.monotonic() - began:.1f} s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
