"""Optimizers of the server: (init, update) pairs on flat float32 arrays.

A rule (one small file each) is a formula with its source, written once: `formulas` makes the numpy kernel, the loop
to be compiled and the bounds on magnitudes of it. A schedule gives the learning rate for a version; `Optimizer` binds
the two and runs the formula in one pass, by numpy blocks or by what a `Backend` compiles. Formulas and defaults are
those of Keras 3, which is the oracle of the tests. Standard library and numpy only.

    optimizer = build({"name": "adam", "learning_rate": 0.001})
    state = optimizer.init(x.size)
    optimizer.update(x, gradient, out, state, version=0, lr_scale=1.0)
"""

from psserver.optimizers.backend import (
    NUMPY,
    AnyArray,
    Backend,
    Fallback,
    Loop,
    NumpyBackend,
    Summing,
    loop,
)
from psserver.optimizers.errors import OptimizerError
from psserver.optimizers.optimizer import Optimizer
from psserver.optimizers.registry import (
    Description,
    build,
    describe,
    describe_schedule,
    names,
    schedule_names,
)

__all__ = [
    "NUMPY",
    "AnyArray",
    "Backend",
    "Description",
    "Loop",
    "NumpyBackend",
    "Optimizer",
    "OptimizerError",
    "Fallback",
    "Summing",
    "build",
    "describe",
    "describe_schedule",
    "loop",
    "names",
    "schedule_names",
]
