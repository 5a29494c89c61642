"""What a shard tells of each version that it has made."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import Plan, ShardLayout

Marks = NDArray[np.bool_] | None
"""Which elements of the arena keep their old values; None: none does."""


@dataclass(frozen=True, slots=True)
class VersionMade:
    """A version that a shard has made.

    `kept`: by variable or table, how many elements here kept their old values, because a number of theirs would not
    have been finite; no zeros. `elements`: how many the update could change here.
    """

    version: int
    kept: Mapping[str, int] = field(default_factory=dict)
    elements: int = 0


def either(one: Marks, other: Marks) -> Marks:
    """Return the elements that are in one or the other."""
    if one is None or other is None:
        return other if one is None else one
    return one | other


def by_variable(kept: Marks, plan: Plan, layout: ShardLayout) -> dict[str, int]:
    """Return how many elements of each variable are marked, without zeros."""
    found: Counter[str] = Counter()
    if kept is not None:
        for piece in layout.slices:
            number = np.count_nonzero(kept[piece.offset : piece.offset + piece.size])
            found[plan.variables[piece.variable].name] += int(number)
    return {name: number for name, number in found.items() if number}
