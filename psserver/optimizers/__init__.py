"""Optimizers of the server: (init, update) pairs on flat float32 arrays.

A rule is a formula with its source, in a module of its own. The formula is written once; `formulas` makes of it the
loop to compile. A schedule gives the learning rate of a version. `Optimizer` binds a rule and
a schedule, and runs the loop in one pass (`psserver.fast`). Formulas and defaults are those of Keras 3, the oracle of
the tests.

    optimizer = build({"name": "adam", "learning_rate": 0.001})
    state = optimizer.init(x.size)
    optimizer.update(x, gradient, out, state, version=0, lr_scale=1.0)
"""

from psserver.optimizers.optimizer import Optimizer
from psserver.optimizers.reading import OptimizerError
from psserver.optimizers.registry import (
    Description,
    build,
    describe,
    describe_schedule,
    names,
    schedule_names,
)

__all__ = [
    "Description",
    "Optimizer",
    "OptimizerError",
    "build",
    "describe",
    "describe_schedule",
    "names",
    "schedule_names",
]
