"""Groups of rows that take turns on the wire: version v + 1 differs from version v in group v mod `count` only, and in
layers' state, which travels with every group.

Streaming DiLoCo (Douillard et al. 2025) calls them fragments. The rows of every trainable variable are dealt to the
groups in turn, beginning with the group that has the fewest elements so far. So groups differ by one row at most, each
server holds nearly the same part of every group, and no bit depends on the number of servers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import Plan, PlanError, ShardLayout, Slice

Array = TypeVar("Array", bound=NDArray[Any])


@dataclass(frozen=True, slots=True)
class Rows:
    """Every `step`-th of the rows of `width` elements in [start, stop) of a payload, from row `first` on."""

    start: int
    stop: int
    width: int
    first: int
    step: int

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a view, shape (rows, width)."""
        return values[self.start : self.stop].reshape(-1, self.width)[self.first :: self.step]


@dataclass(frozen=True, slots=True)
class GroupPart:
    """A server's part of one group. `layout`: of these elements, one behind the other, as a payload by themselves.

    `rows`: None for all elements of the server.
    """

    layout: ShardLayout
    rows: Sequence[Rows] | None = None

    @property
    def trained(self) -> "GroupPart":
        """The part without state. Only of one group of several."""
        assert self.rows is not None
        slices = tuple(piece for piece in self.layout.slices if piece.offset < self.layout.trainable)
        layout = ShardLayout(self.layout.server, slices, self.layout.trainable, 0)
        return GroupPart(layout, self.rows[: len(slices)])

    def take(self, values: Array) -> Array:
        """Return the part's elements of a whole payload: a copy, unless it is all of them."""
        if self.rows is None:
            return values
        out = np.empty(self.layout.elements, values.dtype)
        for piece, rows in zip(self.layout.slices, self.rows, strict=True):
            out[piece.offset : piece.offset + piece.size].reshape(-1, rows.width)[...] = rows.of(values)
        return out  # type: ignore[return-value]

    def put(self, values: NDArray[Any], part: NDArray[Any]) -> None:
        """Write the part's elements into a whole payload."""
        if self.rows is None:
            values[...] = part
            return
        for piece, rows in zip(self.layout.slices, self.rows, strict=True):
            rows.of(values)[...] = part[piece.offset : piece.offset + piece.size].reshape(-1, rows.width)


class Groups:
    """The parts of each group on each server. With a `count` of 1 a payload is one part, state included.

    Raises PlanError where a group would have no rows.
    """

    def __init__(self, plan: Plan, count: int) -> None:
        self.count = count
        if count == 1:
            self._parts = [[GroupPart(shard) for shard in plan.shards]]
            return
        firsts = _firsts(plan, count)
        self._parts = [
            [_part(plan, shard, count, [each[group] for each in firsts]) for shard in plan.shards]
            for group in range(count)
        ]

    def of(self, version: int, server: int) -> GroupPart:
        """Return the part of the group that contributions to `version`, and the change of that version, consist of."""
        return self._parts[version % self.count][server]

    def all(self, server: int) -> list[GroupPart]:
        """Return a server's part of each group."""
        return [group[server] for group in self._parts]

    def changed(self, since: int, version: int, server: int) -> list[GroupPart]:
        """Return what differs between two versions; empty if that is everything, or if there is no telling."""
        if not since < version < since + self.count:
            return []
        return [self.of(each, server) for each in range(since, version)]


def _firsts(plan: Plan, count: int) -> list[list[int]]:
    """Return the first row that each group has of each variable, by variable; others follow at distances of `count`."""
    loads, firsts = [0] * count, []
    for spec in plan.variables:
        ranked = sorted(range(count), key=lambda group: (loads[group], group))
        firsts.append([ranked.index(group) for group in range(count)])
        if spec.kind == "trainable":
            for group, first in enumerate(firsts[-1]):
                loads[group] += len(range(first, spec.rows, count)) * spec.width
    if min(loads) == 0:
        raise PlanError(f"fragments: expected no more than the model has rows, got {count}")
    return firsts


def _part(plan: Plan, shard: ShardLayout, count: int, firsts: Sequence[int]) -> GroupPart:
    """Return what `shard` has of the group whose first row of each variable is given, and its state."""
    slices, rows, size, trained = list[Slice](), list[Rows](), 0, 0
    for piece in shard.slices:
        state, width = piece.offset >= shard.trainable, plan.variables[piece.variable].width
        first, step = (0, 1) if state else ((firsts[piece.variable] - piece.start) % count, count)
        number = len(range(first, piece.stop - piece.start, step))
        if number:
            slices.append(Slice(piece.variable, 0, number, size, number * width))
            rows.append(Rows(piece.offset, piece.offset + piece.size, width, first, step))
            size += number * width
            trained += 0 if state else number * width
    return GroupPart(ShardLayout(shard.server, tuple(slices), trained, size - trained), rows)
