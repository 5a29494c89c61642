"""One server's part of the model: it holds arrays and obeys orders.

Rules of this package: numpy, the plan, saved records, the optimizers and the
declarations of psserver.policies only; no I/O, no threads, no clock. Same orders, same payloads, same bits.
"""

from psserver.shard.resharding import reshard
from psserver.shard.shard import Shard
from psserver.shard.state import ShardState, copied
from psserver.shard.updates import NonfiniteError, ShardError
from pswire.decisions.orders import (
    Admit,
    Apply,
    Discard,
    Dismiss,
    Fold,
    Install,
    Note,
    Order,
    Pin,
    Release,
    Seal,
)

__all__ = [
    "Admit",
    "Apply",
    "Discard",
    "Dismiss",
    "Fold",
    "Install",
    "NonfiniteError",
    "Note",
    "Order",
    "Pin",
    "Release",
    "Seal",
    "Shard",
    "ShardError",
    "ShardState",
    "copied",
    "reshard",
]
