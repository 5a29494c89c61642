"""What an exchange's messages travel on: a gRPC call, or a connection of a plain socket."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from psserver.service.limits.watch import Caller
from pswire.transport.framed_socket import Parts
from pswire.transport.frames import Message


class Stream(Protocol):
    """Messages both ways, in turn. `caller` is the other end."""

    @property
    def caller(self) -> Caller: ...

    async def receive(self) -> Message | None:
        """The next message, good until the one after it; None when the stream is over."""
        ...

    async def send(self, parts: Parts) -> None:
        """One message, in pieces. It must be taken in time."""
        ...


Serve = Callable[[Stream], Awaitable[None]]
