"""Figures of tables to messages and back."""

from dataclasses import fields
from typing import Any, Final

from pswire.model.table_figures import TableFigures
from pswire.v1 import memory_pb2

_PAIRS: Final = {"levels": ("level_rows", "level_updates"), "hot": ("hot_ids", "hot_updates")}


def table_to_wire(figures: TableFigures) -> memory_pb2.TableUse:
    """Convert the figures of a table."""
    plain = figures.to_json()
    message = memory_pb2.TableUse(**{name: plain[name] for name in plain.keys() - _PAIRS.keys()})
    for name, (one, other) in _PAIRS.items():
        getattr(message, one).extend(pair[0] for pair in plain[name])
        getattr(message, other).extend(pair[1] for pair in plain[name])
    return message


def table_from_wire(message: memory_pb2.TableUse) -> TableFigures:
    """Read what `table_to_wire` returned."""
    pairs: dict[str, Any] = {
        name: tuple(zip(getattr(message, one), getattr(message, other), strict=False))
        for name, (one, other) in _PAIRS.items()
    }
    plain = {
        each.name: getattr(message, each.name) for each in fields(TableFigures) if each.name not in pairs
    }
    return TableFigures(**plain, **pairs)
