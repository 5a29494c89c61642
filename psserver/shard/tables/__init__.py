"""Sparse tables of a shard: rows that exist once an update has touched them, and every recent version of each."""

from psserver.shard.tables.group import TABLE_KINDS, Tables
from psserver.shard.tables.snapshot import TableState
from psserver.shard.tables.table import Contribution, Table
from psserver.shard.tables.updates import advance

__all__ = [
    "TABLE_KINDS",
    "Contribution",
    "Table",
    "TableState",
    "Tables",
    "advance",
]
