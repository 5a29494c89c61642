"""Replicas: which copies of a part of the model are in sync, and which of them is the primary.

This is the protocol, and tests/replication its proof (README.md there); `psserver.service.replicas` runs it.

Rules of this package: the standard library only; time is an argument; no I/O, no threads, no tensors. A replica's state
is an immutable value: `take` answers an input with the next state and with outputs, to be carried out in order.

    configuration   who holds what, under which epoch; partners
    messages        messages, inputs, outputs
    log             the tail of a replicated log
    state           what a server knows of one log
    voting          a change of the configuration: promises, equal logs, acceptance
    copying         the log within an epoch: acknowledgements, stability, learners
    replica         one input and its rule
    watch           who is silent, when to stand, when to withhold a promise
    reach           a primary that no client reaches
    losing          a part of which no copy is left
    digests         divergence of two copies
    pace            catching up at a bounded rate
"""

from psserver.replication.configuration import (
    Config,
    ReplicationError,
    StableMemory,
    SyncMember,
    first_config,
    majority,
)
from psserver.replication.replica import take
from psserver.replication.state import Replica, begin, restart

__all__ = [
    "Config",
    "StableMemory",
    "SyncMember",
    "Replica",
    "ReplicationError",
    "begin",
    "first_config",
    "majority",
    "restart",
    "take",
]
