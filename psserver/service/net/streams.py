"""Streams of messages that Exchange is served on: a gRPC call or a connection of a socket."""

from collections.abc import Callable, Iterator
from typing import Protocol

from psserver.service.guard.calls import Caller
from pswire.transport.framed_socket import Parts
from pswire.transport.frames import Message


class Stream(Protocol):
    """Messages both ways, in turn. `caller` is the other end."""

    @property
    def caller(self) -> Caller: ...

    async def receive(self) -> Message | None:
        """Return the next message, valid until the one after it; None at the end of the stream."""
        ...

    async def receive_many(self, take: Callable[[Message], bool]) -> None:
        """Pass messages that arrive without a pause to `take`, on another thread, until it returns False.

        A stream that cannot do that passes none. Raises what `take` raises.
        """
        ...

    async def send(self, parts: Parts) -> None:
        """Send one message, in pieces. The peer must read it in time."""
        ...

    async def send_many(self, messages: Iterator[Parts]) -> None:
        """Send large messages while the peer keeps up. They are made on another thread; a stream that cannot do
        that sends none."""
        ...
