"""weights.safetensors: a model's variables by name, and the order that their fingerprint needs.

The format keeps no order, so the order is written into the file's metadata.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from psserver.checkpoint import tensors
from pswire.model.variables import VariableSpec, weights_sha256

ORDER = "order"


class WeightsFileError(ValueError):
    """A file that holds no weights. The text says what is wrong, but not where."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The contents of a file. `order`: the variables' names in the plan's order; None if the file does not say."""

    arrays: Mapping[str, NDArray[np.float32]]
    order: tuple[str, ...] | None

    def sha256(self) -> str | None:
        """Return the fingerprint of these weights, or None if their order is not known.

        Raises WeightsFileError when the order does not name the variables.
        """
        if self.order is None:
            return None
        if sorted(self.order) != sorted(self.arrays):
            raise WeightsFileError("its list of variables is not that of its arrays")
        specs = [VariableSpec(name, self.arrays[name].shape) for name in self.order]
        return weights_sha256(specs, [self.arrays[name] for name in self.order])


def pieces(weights: Mapping[str, NDArray[np.float32]]) -> Iterator[memoryview]:
    """Yield the file in pieces, from all variables in the plan's order."""
    # `ascontiguousarray` would turn a scalar into a vector.
    contiguous = {name: np.asarray(values, np.float32, order="C") for name, values in weights.items()}
    return tensors.pieces(contiguous, {ORDER: json.dumps(list(weights))})


def save(path: Path, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Write all variables, given in the plan's order. Raises OSError."""
    with path.open("wb") as file:
        for piece in pieces(weights):
            file.write(piece)


def load(path: Path) -> Saved:
    """Read a file that `save`, or an older version of it, wrote. Raises OSError and WeightsFileError."""
    # Imported here, because only readers of a file need it.
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            names = list(file.keys())
            for name in names:
                if (dtype := file.get_slice(name).get_dtype()) != "F32":
                    raise WeightsFileError(f"expected float32 for {name!r}, got {dtype}")
            arrays = {name: file.get_tensor(name) for name in names}
            return Saved(arrays, _order(file.metadata() or {}))
    except SafetensorError as error:
        raise WeightsFileError(str(error)) from error


def _order(metadata: Mapping[str, str]) -> tuple[str, ...] | None:
    if ORDER not in metadata:
        return None
    try:
        names = json.loads(metadata[ORDER])
    except ValueError as error:
        raise WeightsFileError(f"its list of variables is not JSON: {error}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WeightsFileError("its list of variables is not a list of names")
    return tuple(names)
