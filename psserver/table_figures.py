"""Figures of a table: what it holds and how it grows, in a few numbers that add up over servers."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from pswire.values import value


@value
class TableFigures:
    """One table, on one server or on several.

    `nbytes`: of rows and index. Counted since the servers' last start are `versions`, `touched` (rows changed by them,
    added up; `newest`: by the last one), `made` and `evicted` rows, and `refused` gradients for rows that were not
    made.
    """

    name: str
    rows: int = 0
    nbytes: int = 0
    versions: int = 0
    touched: int = 0
    newest: int = 0
    made: int = 0
    evicted: int = 0
    refused: int = 0

    @property
    def per_version(self) -> float:
        """The rows that a version changes, in the mean."""
        return self.touched / self.versions if self.versions else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TableFigures":
        """Read what `to_json` returned. Raises KeyError, TypeError or ValueError."""
        return cls(str(data["name"]), *(int(data[name]) for name in NUMBERS))


NUMBERS = tuple(each.name for each in fields(TableFigures) if each.name != "name")
"""The names of all fields but the table's name."""


def together(several: Iterable[TableFigures]) -> list[TableFigures]:
    """Return the figures of each table, in the order of their first appearance, added up over servers."""
    found: dict[str, TableFigures] = {}
    for each in several:
        found[each.name] = _sum(found[each.name], each) if each.name in found else each
    return list(found.values())


def _sum(one: TableFigures, other: TableFigures) -> TableFigures:
    whole = {name: getattr(one, name) + getattr(other, name) for name in NUMBERS}
    # Every server has every version.
    return TableFigures(one.name, **{**whole, "versions": max(one.versions, other.versions)})
