"""The server that leads a job with replicas: a channel to it, which moves when another one leads."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from pswire.addresses import Address, AddressError, parse_address
from pswire.bounds import BoundError, check
from pswire.logs.events import event
from pswire.transport.connecting import stub_of
from pswire.v1 import coordinator_pb2 as pb

log = logging.getLogger("ps-worker")

#: Seconds that an answer may take, and between two questions while all is well.
ANSWER: Final = 0.3
EVERY: Final = 0.5


class Leader(grpc.Channel):
    """A channel to whichever server leads. Any thread may use it; `_one` guards what changes.

    Calls under way end when it moves, as if their server had died.
    """

    def __init__(self, hosts: Sequence[Address], open_channel: Callable[[Address], grpc.Channel]) -> None:
        self._one = threading.Lock()
        self._open = open_channel
        self._channels = {address: open_channel(address) for address in hosts}
        self.address, self._epoch = hosts[0], 0
        self._closed = False

    def seek(self) -> bool:
        """Ask all servers who leads; return whether that is another one than before."""
        with self._one:
            asked = dict(self._channels)
        calls = [
            stub_of(channel).FindCoordinator.future(pb.FindCoordinatorRequest(), timeout=ANSWER)
            for channel in asked.values()
        ]
        found = [reply for call in calls if (reply := _answer(call)) is not None and reply.address]
        newest = max(found, key=lambda reply: reply.epoch, default=None)
        return newest is not None and self._move(newest)

    def _move(self, reply: pb.FindCoordinatorReply) -> bool:
        try:
            address = parse_address(reply.address)
        except AddressError:
            return False
        with self._one:
            if self._closed or reply.epoch < self._epoch or address == self.address:
                return False
            before, self.address, self._epoch = self.address, address, reply.epoch
            former = self._channels[before]
            # A channel that is closed ends its calls. Another one takes its place: that server may lead again.
            self._channels[before] = self._open(before)
            if address not in self._channels:
                self._channels[address] = self._open(address)
        log.warning(
            "the server at %s leads the job, in epoch %d",
            *(address, reply.epoch),
            extra=event("leader_changed", address=str(address), epoch=reply.epoch),
        )
        former.close()
        return True

    def watch(self, closing: threading.Event) -> None:
        """Ask again and again, in a thread of its own: a leader that stands still breaks no connection."""

        def ask() -> None:
            while not closing.wait(EVERY):
                self.seek()

        threading.Thread(target=ask, name="leader", daemon=True).start()

    def _now(self) -> grpc.Channel:
        with self._one:
            return self._channels[self.address]

    def unary_unary(self, *given: Any, **named: Any) -> Any:
        return lambda *asked, **how: self._now().unary_unary(*given, **named)(*asked, **how)

    def unary_stream(self, *given: Any, **named: Any) -> Any:
        return lambda *asked, **how: self._now().unary_stream(*given, **named)(*asked, **how)

    def stream_unary(self, *given: Any, **named: Any) -> Any:
        return lambda *asked, **how: self._now().stream_unary(*given, **named)(*asked, **how)

    def stream_stream(self, *given: Any, **named: Any) -> Any:
        return lambda *asked, **how: self._now().stream_stream(*given, **named)(*asked, **how)

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        raise NotImplementedError("a channel that moves has no one state")

    def unsubscribe(self, callback: Any) -> None:
        raise NotImplementedError("a channel that moves has no one state")

    def close(self) -> None:
        with self._one:
            self._closed = True
            channels = list(self._channels.values())
        for channel in channels:
            channel.close()

    def __enter__(self) -> "Leader":
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()


def _answer(call: Any) -> pb.FindCoordinatorReply | None:
    try:
        reply: pb.FindCoordinatorReply = call.result()
        check(reply)
    except (grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError, BoundError, ValueError):
        # A server that does not answer says nothing; neither does a channel that was closed meanwhile.
        return None
    return reply
