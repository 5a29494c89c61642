"""Arrays by name as a `psworker.backends.Model`: the plainest implementation, and an example for others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psworker.backends import Landing
from psworker.connecting import specified


class Arrays:
    """`arrays`: float arrays by name, which `put` writes into. `state`: names of those that no optimizer trains."""

    backend = "numpy"
    device = "cpu"

    def __init__(self, arrays: Mapping[str, NDArray[Any]], state: Collection[str] = ()) -> None:
        found = sorted(specified(arrays, state), key=lambda each: each[0].kind == "state")
        self.specs = [spec for spec, _ in found]
        self._arrays = [arrays[spec.name] for spec in self.specs]
        self._before: list[NDArray[Any]] = []

    def values(self) -> list[NDArray[Any]]:
        return self._arrays

    def put(self, arrays: Sequence[NDArray[Any]]) -> None:
        for mine, array in zip(self._arrays, arrays, strict=True):
            np.copyto(mine, array, casting="unsafe")
        self._before = [array.copy() for array in self._state()]

    def changes(self) -> list[NDArray[Any]]:
        return [now - before for now, before in zip(self._state(), self._before, strict=True)]

    def fetch(self, value: Any, start: int, stop: int, dtype: np.dtype[Any]) -> Landing:
        rows = np.atleast_1d(np.asarray(value))[start:stop].reshape(-1)
        return lambda: rows.astype(dtype, copy=False)

    def _state(self) -> list[NDArray[Any]]:
        return [array for spec, array in zip(self.specs, self._arrays, strict=True) if spec.kind == "state"]
