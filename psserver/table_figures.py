"""Figures of a table: what it holds, in numbers that add up over servers."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from pswire.values import value


@value
class TableFigures:
    """The rows of one table, on one server or on several. `nbytes`: of rows and index."""

    name: str
    rows: int = 0
    nbytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TableFigures":
        """Read what `to_json` returned. Raises KeyError, TypeError or ValueError."""
        return cls(str(data["name"]), int(data["rows"]), int(data["nbytes"]))


def together(several: Iterable[TableFigures]) -> list[TableFigures]:
    """Return the figures of each table, in the order of their first appearance, added up over servers."""
    found: dict[str, TableFigures] = {}
    for each in several:
        before = found.get(each.name, TableFigures(each.name))
        found[each.name] = TableFigures(each.name, before.rows + each.rows, before.nbytes + each.nbytes)
    return list(found.values())
