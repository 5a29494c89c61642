"""Variables by name, as a training loop has them, and as flat arrays, as they travel."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pswire.plan import Plan, VariableSpec

Floats = NDArray[np.float32]
Variables = Mapping[str, ArrayLike] | Sequence[tuple[VariableSpec, ArrayLike]]


def specified(variables: Variables) -> list[tuple[VariableSpec, ArrayLike]]:
    """With the specifications that their values imply, if they have none."""
    if not isinstance(variables, Mapping):
        return list(variables)
    arrays = {name: np.asarray(value) for name, value in variables.items()}
    return [(VariableSpec(name, a.shape, str(a.dtype)), a) for name, a in arrays.items()]


def by_name(plan: Plan, flats: Sequence[Floats]) -> dict[str, Floats]:
    """One flat array per server: arrays by variable name, which may be views of them."""
    return {spec.name: array for spec, array in zip(plan.variables, plan.gather(flats), strict=True)}


def flattened(plan: Plan, arrays: Mapping[str, ArrayLike]) -> list[Floats]:
    """One flat array per server, zero where there is none of a name. Raises ValueError for an unknown name or
    wrong shape."""
    known = {spec.name for spec in plan.variables}
    unknown = sorted(set(arrays) - known)
    if unknown:
        raise ValueError(f"no variable is named {unknown[0]!r}; expected some of {sorted(known)}")
    return plan.scatter([arrays.get(spec.name, np.zeros(spec.shape, np.float32)) for spec in plan.variables])
