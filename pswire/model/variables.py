"""A model's variables as servers and workers see them, and the difference between two models."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pswire.nearest import did_you_mean

Kind = Literal["trainable", "state"]

DTYPES: Final = ("float32", "float16", "bfloat16", "float64")
# 2**40 elements are 4 TiB. A larger claim is a mistake or an attack, not a model.
MAX_ELEMENTS: Final = 2**40
# Dimensions of all variables together: four for each variable that a Join may name. Large models have thousands.
MAX_DIMENSIONS: Final = 2**16


class PlanError(ValueError):
    """Variables or arrays that no plan can hold, or that do not fit this plan."""


@dataclass(frozen=True, slots=True)
class VariableSpec:
    """A named tensor. `dtype` is the model's own; servers and payloads hold float32."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    kind: Kind = "trainable"

    def __post_init__(self) -> None:
        # numpy's integers compare equal but print differently in the fingerprint's text.
        object.__setattr__(self, "shape", tuple(index(length) for length in self.shape))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        """The length of axis 0, along which a variable may be split; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def width(self) -> int:
        """The number of elements per row."""
        return math.prod(self.shape[1:])

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype}{list(self.shape)} ({self.kind})"


def check_dimensions(total: int) -> None:
    """Raise PlanError if all variables together have more dimensions than a plan may have."""
    if total > MAX_DIMENSIONS:
        raise PlanError(
            f"expected at most {MAX_DIMENSIONS} dimensions of all variables together, got {total}"
        )


def check_specs(specs: Sequence[VariableSpec]) -> None:
    """Raise PlanError, naming the first wrong variable, unless `specs` can be planned."""
    if not specs:
        raise PlanError("expected at least one variable, got none")
    check_dimensions(sum(len(spec.shape) for spec in specs))
    seen: set[str] = set()
    for number, spec in enumerate(specs):
        if not spec.name:
            raise PlanError(f"variable {number}: expected a name, got an empty one")
        where = f"variable {spec.name!r}"
        if spec.name in seen:
            raise PlanError(f"{where}: two variables have this name (again: number {number}); rename one")
        seen.add(spec.name)
        if not all(length >= 1 for length in spec.shape):
            raise PlanError(f"{where}: expected dimensions >= 1, got the shape {list(spec.shape)}")
        if spec.dtype not in DTYPES:
            hint = did_you_mean(spec.dtype, DTYPES)
            raise PlanError(f"{where}: expected a floating dtype, got {spec.dtype!r}{hint}")
        if spec.kind not in get_args(Kind):
            raise PlanError(f'{where}: expected kind "trainable" or "state", got {spec.kind!r}')
    total = sum(spec.size for spec in specs)
    if total > MAX_ELEMENTS:
        raise PlanError(f"expected at most 2**40 elements in all, got {total}")


def checked_arrays(specs: Sequence[VariableSpec], arrays: Sequence[ArrayLike]) -> list[NDArray[np.generic]]:
    """Return `arrays` as numpy arrays that fit `specs`, not yet cast. Raises PlanError naming the first misfit."""
    if len(arrays) != len(specs):
        raise PlanError(f"expected {len(specs)} arrays, one per variable, got {len(arrays)}")
    checked = [np.asarray(array) for array in arrays]
    for spec, array in zip(specs, checked, strict=True):
        if array.shape != spec.shape:
            raise PlanError(f"{spec.name!r}: expected the shape {list(spec.shape)}, got {list(array.shape)}")
        if not np.can_cast(array.dtype, np.float32, "same_kind"):
            raise PlanError(f"{spec.name!r}: expected numbers that fit float32, got the dtype {array.dtype}")
    return checked


def explain_mismatch(expected: Sequence[VariableSpec], got: Sequence[VariableSpec]) -> str:
    """Describe the first difference between two models' variables."""
    for number, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one != other:
            return f"variable {number}: expected {one}, got {other}"
    shorter = min(len(expected), len(got))
    if shorter < len(expected):
        return f"expected {len(expected)} variables, got {len(got)}: {expected[shorter]} is missing"
    if shorter < len(got):
        return f"expected {len(expected)} variables, got {len(got)}: {got[shorter]} is too many"
    return "the variables are the same; the number of servers or the version of this software differs"


WholeTables = Mapping[str, tuple[NDArray[np.int64], NDArray[np.float32]]]
"""The rows of sparse tables by name: ids, in the order of their keys, and a row for each, [n, dim]."""


def weights_sha256(
    variables: Sequence[VariableSpec], arrays: Sequence[ArrayLike], tables: WholeTables | None = None
) -> str:
    """Return the hex digest of a model: each variable's name, shape and little-endian float32 bytes, in order; then
    each table's name and shape, its ids and its rows.

    It does not depend on the number of servers, the model's own dtypes, or the kinds. Raises PlanError for arrays that
    do not fit the variables.
    """
    digest = hashlib.sha256()
    for spec, array in zip(variables, checked_arrays(variables, arrays), strict=True):
        digest.update(json.dumps([spec.name, list(spec.shape)]).encode() + b"\n")
        digest.update(np.ascontiguousarray(array, dtype="<f4").reshape(-1).view(np.uint8).data)
    for name, (ids, rows) in (tables or {}).items():
        digest.update(json.dumps([name, list(rows.shape)]).encode() + b"\n")
        digest.update(np.ascontiguousarray(ids, dtype="<i8").view(np.uint8).data)
        digest.update(np.ascontiguousarray(rows, dtype="<f4").reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
