"""Optimizers of the server: (init, update) pairs on flat float32 arrays.

A rule is a formula with its source, in a module of its own. The formula is written once; `formulas` makes of it the
numpy kernel, the loop to compile, and bounds on magnitudes. A schedule gives the learning rate of a version.
`Optimizer` binds a rule and a schedule, and runs the formula in one pass, as numpy blocks or as the loop that a
`Backend` has compiled. Formulas and defaults are those of Keras 3, the oracle of the tests. Standard library and numpy
only.

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
    RowPass,
    Summing,
    loop,
)
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
    "NUMPY",
    "AnyArray",
    "Backend",
    "Description",
    "Loop",
    "NumpyBackend",
    "Optimizer",
    "OptimizerError",
    "RowPass",
    "Fallback",
    "Summing",
    "build",
    "describe",
    "describe_schedule",
    "loop",
    "names",
    "schedule_names",
]
