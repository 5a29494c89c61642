"""Figures of a table: what it holds and how its rows are used, in a few numbers that add up over servers."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from pswire.values import value

# Of the rows with the most updates, as many are named.
HOTTEST: Final = 8
# Rows with 2^k to 2^(k+1) - 1 updates are one level.
LEVELS: Final = 32


@value
class TableFigures:
    """One table, on one server or on several.

    `nbytes`: of rows and index; `places`: of the index. `levels`: how many rows have 2^k to 2^(k+1) - 1 updates, and
    how many updates these had. `hot`: ids with the most updates, and their updates. Counted since the servers' last
    start are `versions`, `touched` (rows changed by them, added up; `newest`: by the last one), `made` and `evicted`
    rows, and `refused` gradients for rows that were not made. `read` and `behind`: of a sample of gradients' rows,
    their number, and the updates that these rows had between the version they were read at and the one they went into.
    """

    name: str
    rows: int = 0
    nbytes: int = 0
    places: int = 0
    versions: int = 0
    touched: int = 0
    newest: int = 0
    made: int = 0
    evicted: int = 0
    refused: int = 0
    read: int = 0
    behind: int = 0
    levels: tuple[tuple[int, int], ...] = ()
    hot: tuple[tuple[int, int], ...] = ()

    @property
    def load(self) -> float:
        """The part of the index's places that are taken."""
        return self.rows / self.places if self.places else 0.0

    @property
    def updates(self) -> int:
        """The updates that all rows have had."""
        return sum(updates for _, updates in self.levels)

    @property
    def unique(self) -> float:
        """Rows per update of a row: 1 if each was updated once, near 0 if the same ones come again and again."""
        return self.rows / self.updates if self.updates else 1.0

    @property
    def skew(self) -> float:
        """The share of updates that the hundredth part of rows with the most had; exact but for the last level."""
        left, found = self.rows / 100, 0.0
        for rows, updates in reversed(self.levels):
            taken = min(left, rows)
            found += updates * taken / rows if rows else 0.0
            left -= taken
        return found / self.updates if self.updates else 0.0

    @property
    def per_version(self) -> float:
        """The rows that a version changes, in the mean."""
        return self.touched / self.versions if self.versions else 0.0

    @property
    def staleness(self) -> float:
        """The updates of a row between its reading and its gradient, in the mean."""
        return self.behind / self.read if self.read else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TableFigures":
        """Read what `to_json` returned. Raises KeyError, TypeError or ValueError."""
        whole: dict[str, Any] = {
            each.name: int(data[each.name]) for each in fields(cls) if each.type in (int, "int")
        }
        pairs: dict[str, Any] = {
            each: tuple((int(one), int(other)) for one, other in data[each]) for each in ("levels", "hot")
        }
        return cls(name=str(data["name"]), **whole, **pairs)


def together(several: Iterable[TableFigures]) -> list[TableFigures]:
    """Return the figures of each table, in the order of their first appearance, added up over servers."""
    found: dict[str, TableFigures] = {}
    for each in several:
        found[each.name] = _sum(found[each.name], each) if each.name in found else each
    return list(found.values())


def _sum(one: TableFigures, other: TableFigures) -> TableFigures:
    whole = {
        each.name: getattr(one, each.name) + getattr(other, each.name)
        for each in fields(TableFigures)
        if each.type in (int, "int")
    }
    # Every server has every version.
    whole["versions"] = max(one.versions, other.versions)
    wide = max(len(one.levels), len(other.levels))
    levels = [[*each.levels, *[(0, 0)] * (wide - len(each.levels))] for each in (one, other)]
    hot = sorted((*one.hot, *other.hot), key=lambda row: (-row[1], row[0]))[:HOTTEST]
    return TableFigures(
        name=one.name,
        **whole,
        levels=tuple((a + c, b + d) for (a, b), (c, d) in zip(*levels, strict=True)),
        hot=tuple(hot),
    )
