"""What a shard tells of each version that it has made."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import Plan, ShardLayout

Marks = NDArray[np.bool_] | None
"""Which elements of the arena keep their old values; None: none does."""


@dataclass(frozen=True, slots=True)
class Executed:
    """A version that a shard has made.

    `kept`: the elements here, those of rows and of layers' state among them, that kept their old values because a
    number of theirs would not have been finite. `variable`: the variable or table with most of them, of several the
    first by name; "" if there are none. `whole`: whether all of a variable that lies whole here was kept back.
    `square`: the square of the L2 norm of the update's weighted sum of gradients here; None if it is not measured, or
    not finite.
    """

    version: int
    kept: int = 0
    variable: str = ""
    whole: bool = False
    square: float | None = None


def either(one: Marks, other: Marks) -> Marks:
    """Return the elements that are in one or the other."""
    if one is None or other is None:
        return other if one is None else one
    return one | other


def executed(
    version: int,
    plan: Plan,
    layout: ShardLayout,
    kept: Marks = None,
    rows: Mapping[str, int] | None = None,
    square: float | None = None,
) -> Executed:
    """Return the fact of a version. `kept`: elements that were kept back; `rows`: how many, by the table's name."""
    found = {name: number for name, number in (rows or {}).items() if number}
    whole = False
    if kept is not None:
        own: dict[int, int] = {}
        for piece in layout.slices:
            number = int(np.count_nonzero(kept[piece.offset : piece.offset + piece.size]))
            own[piece.variable] = own.get(piece.variable, 0) + number
        for place, number in own.items():
            if number:
                spec = plan.variables[place]
                found[spec.name] = found.get(spec.name, 0) + number
                whole = whole or number == spec.size
    most = min(found, key=lambda name: (-found[name], name), default="")
    return Executed(version, sum(found.values()), most, whole, square)
