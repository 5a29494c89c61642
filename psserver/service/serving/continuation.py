"""Why a server ends, and what goes on behind it in this process."""

import asyncio
from dataclasses import dataclass, field

from psserver.service.succession.successor import Successor
from pswire.addresses import Address


@dataclass(slots=True)
class Continuation:
    """The loop's thread owns it."""

    # Of all servers of the job, as far as they are known; and those that are not where workers were told.
    hosts: tuple[Address, ...]
    moved: frozenset[int]
    # For how many seconds the server that goes on with the job may wait for the others.
    recover: float
    # Why the job is to go on in another server of this process, if it is.
    again: str | None = None
    # The next job, if any.
    successor: Successor | None = None
    # The name of the signal that came, if one did.
    signal: str | None = None
    # Set when something has happened that may end the server.
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def begin_again(self, reason: str) -> None:
        self.again = reason
        self.wake.set()

    def move(self, server: int, address: Address) -> None:
        """That server is there from now on."""
        hosts = list(self.hosts)
        hosts[server] = address
        self.hosts, self.moved = tuple(hosts), self.moved | {server}
        self.begin_again(f"server {server} came back at {address}")
