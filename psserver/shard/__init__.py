"""One server's part of the model: a shard holds arrays and executes orders.

This package uses numpy, the plan, saved records, the optimizers and the declarations of psserver.policies only: no I/O,
no threads, no clock. The same orders and payloads give the same bits.
"""

from psserver.decisions.orders import (
    Admit,
    Apply,
    Discard,
    Dismiss,
    Fold,
    Hold,
    Install,
    Note,
    Order,
    Release,
    Seal,
)
from psserver.shard.facts import VersionMade
from psserver.shard.resharding import reshard
from psserver.shard.shard import Shard
from psserver.shard.state import ShardState, copied
from psserver.shard.updates import ShardError

__all__ = [
    "Admit",
    "Apply",
    "Discard",
    "Dismiss",
    "VersionMade",
    "Fold",
    "Install",
    "Note",
    "Order",
    "Hold",
    "Release",
    "Seal",
    "Shard",
    "ShardError",
    "ShardState",
    "copied",
    "reshard",
]
