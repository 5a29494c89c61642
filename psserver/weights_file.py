"""weights.safetensors: a model's variables by name, the rows of its sparse tables, and the order of both.

The format keeps no order, and the fingerprint needs one, so it is written into the file's metadata. The rows of a table
are two arrays: ids (int64), in the order of their keys, and rows.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver.checkpoint import tensors
from pswire.model.variables import VariableSpec, WholeTables, weights_sha256

ORDER, TABLES = "order", "tables"
# The ends of the names of a table's arrays, behind "table/NAME/".
IDS, ROWS = "ids", "rows"


class WeightsFileError(ValueError):
    """A file that holds no weights. The text says what is wrong, but not where."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The contents of a file. `order`: the variables' names in the plan's order."""

    arrays: Mapping[str, NDArray[np.float32]]
    order: tuple[str, ...]
    tables: WholeTables = field(default_factory=dict)

    def sha256(self) -> str:
        """Return the fingerprint of these weights. Raises WeightsFileError when the order does not name them."""
        if sorted(self.order) != sorted(self.arrays):
            raise WeightsFileError("its list of variables is not that of its arrays")
        specs = [VariableSpec(name, self.arrays[name].shape) for name in self.order]
        return weights_sha256(specs, [self.arrays[name] for name in self.order], self.tables)


def pieces(
    weights: Mapping[str, NDArray[np.float32]], tables: WholeTables | None = None
) -> Iterator[memoryview]:
    """Yield the file in pieces, from all variables and tables in the plan's order."""
    # `ascontiguousarray` would turn a scalar into a vector.
    arrays: dict[str, NDArray[Any]] = {
        name: np.asarray(values, np.float32, order="C") for name, values in weights.items()
    }
    metadata = {ORDER: json.dumps(list(weights))}
    if tables:
        metadata[TABLES] = json.dumps(list(tables))
    return tensors.pieces(named(arrays, tables or {}), metadata)


def named(weights: Mapping[str, NDArray[Any]], tables: WholeTables) -> dict[str, NDArray[Any]]:
    """Return all arrays of variables and tables by name."""
    arrays = dict(weights)
    for name, (ids, rows) in tables.items():
        arrays |= {f"table/{name}/{IDS}": ids, f"table/{name}/{ROWS}": rows}
    return arrays


def save(path: Path, weights: Mapping[str, NDArray[np.float32]], tables: WholeTables | None = None) -> None:
    """Write all variables and tables, given in the plan's order. Raises OSError."""
    with path.open("wb") as file:
        for piece in pieces(weights, tables):
            file.write(piece)


def load(path: Path) -> Saved:
    """Read a file that `save` wrote. Raises OSError and WeightsFileError."""
    # Imported here, because only readers of a file need it.
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            tables = _names(metadata, TABLES) if TABLES in metadata else ()
            whole = {f"table/{name}/{IDS}" for name in tables}
            arrays = {}
            for name in file.keys():
                expected = "I64" if name in whole else "F32"
                if (dtype := file.get_slice(name).get_dtype()) != expected:
                    wanted = "int64" if expected == "I64" else "float32"
                    raise WeightsFileError(f"expected {wanted} for {name!r}, got {dtype}")
                arrays[name] = file.get_tensor(name)
            rows = {
                name: (arrays.pop(f"table/{name}/{IDS}"), arrays.pop(f"table/{name}/{ROWS}"))
                for name in tables
            }
            return Saved(arrays, _names(metadata, ORDER), rows)
    except KeyError as error:
        raise WeightsFileError(f"it lacks {error} of a table that it names") from error
    except (SafetensorError, ValueError, OverflowError, MemoryError) as error:
        # Also a shape without elements that no array can have.
        raise WeightsFileError(str(error) or type(error).__name__) from error


def _names(metadata: Mapping[str, str], key: str) -> tuple[str, ...]:
    if key not in metadata:
        raise WeightsFileError(
            "it does not state the order of its variables: another program or release wrote it"
        )
    try:
        names = json.loads(metadata[key])
    except (ValueError, RecursionError) as error:
        raise WeightsFileError(f"its list of variables is not JSON: {error}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WeightsFileError("its list of variables is not a list of names")
    return tuple(names)
