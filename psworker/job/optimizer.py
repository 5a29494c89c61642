"""What servers' optimizer remembers at a version, for a model that is written to a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """`config`: the job's [optimizer], with all knobs. `slots`: of each slot, in the order of the rule, an array for
    each variable by name. `rate`: the learning rate that was set last; None: as `config` says."""

    config: Mapping[str, object]
    slots: Sequence[Mapping[str, np.ndarray[Any, Any]]] = field(repr=False)
    version: int
    rate: float | None = None
