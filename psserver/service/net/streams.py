"""What an exchange's messages travel on: a gRPC call, or a connection of a plain socket."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from psserver.service.guard.calls import Caller
from pswire.transport.framed_socket import Parts
from pswire.transport.frames import Message


class Stream(Protocol):
    """Messages both ways, in turn. `caller` is the other end."""

    @property
    def caller(self) -> Caller: ...

    @property
    def fingerprint(self) -> bytes:
        """Of the certificate that the other end has shown; empty without one."""
        ...

    async def receive(self) -> Message | None:
        """The next message, good until the one after it; None when the stream is over."""
        ...

    async def receive_many(self, take: Callable[[Message], bool]) -> None:
        """Of further messages those that come without a pause, and none where the stream cannot: `take` is given
        each on another thread, until it returns False. What it raises is raised."""
        ...

    async def send(self, parts: Parts) -> None:
        """One message, in pieces. It must be taken in time."""
        ...

    async def send_many(self, messages: Iterator[Parts]) -> None:
        """Of large messages those that are taken without a pause, and none where the stream cannot; they are made on
        another thread."""
        ...


Serve = Callable[[Stream], Awaitable[None]]
