"""Configurations of a replicated log, which say who holds what, and which servers are partners."""

from typing import Final, NamedTuple

#: Copies of a part that `--replicas 2` asks for. Pairs lose less than a ring when two servers die at once.
COPIES: Final = 2
#: Epochs of one generation. Those of the next one begin above them, so that workers, which know epochs only, follow.
EPOCHS: Final = 1_000_000


class ReplicationError(Exception):
    """A broken promise of another server, or a call that does not fit the state: the protocol excludes both."""


class SyncMember(NamedTuple):
    """A copy that is in sync: a server, in one incarnation. A restarted server is another member."""

    server: int
    incarnation: int


class Config(NamedTuple):
    """The configuration of one epoch.

    `members`: the copies in sync, the primary's among them. `base`: how many items of the log the epoch begins with.
    """

    epoch: int
    primary: int
    members: tuple[SyncMember, ...]
    base: int = 0


class StableMemory(NamedTuple):
    """The memory that a server must never lose: the highest epoch that it promised, and the newest configuration
    accepted."""

    promised: int
    config: Config


def first_config(copies: tuple[int, ...], generation: int = 0) -> Config:
    """Return the configuration that a generation begins with: all copies empty, in incarnation 0, and equal."""
    return Config(generation * EPOCHS, copies[0], tuple(SyncMember(server, 0) for server in copies))


def majority(servers: int) -> int:
    """Return the least number of servers of which any two groups have one in common."""
    return servers // 2 + 1


def next_epoch(above: int, server: int, servers: int) -> int:
    """Return this server's lowest epoch above the given one. No two servers propose the same epoch."""
    return (above // servers + 1) * servers + server
