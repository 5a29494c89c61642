"""The server that leads a job with replicas: a channel to it, which moves when another one leads."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import grpc

from pswire import running
from pswire.addresses import Address, AddressError, parse_address
from pswire.bounds import BoundError, check
from pswire.transport.connecting import stub_of
from pswire.v1 import coordinator_pb2 as pb

#: Seconds that an answer may take; and that of a server that gave none in that time, when it is asked next.
ANSWER: Final = 0.3
BRIEF: Final = 0.1
#: Seconds between two questions while all is well; and while the server that led says nothing.
EVERY: Final = 0.5
SOON: Final = 0.1
#: The answer of a server that does not lead to what only the one that leads can do.
NOT_LEADING: Final = "another server leads the job, or none does: wait"
#: Seconds without an answer of the server that others name, after which they are told so.
UNREACHED: Final = 2.0


class Sought(NamedTuple):
    """The servers' answers about who leads. `moved`: another one than before; `present`: the one before, as it says
    itself; `heard`: whether any of them answered, or may be slow, of several."""

    moved: bool
    present: bool
    heard: bool


class Leader(grpc.Channel):
    """A channel to whichever server leads. Any thread may use it; `_one` guards what changes.

    Calls under way end when it moves, as if their server had died. `told`: called with address and epoch when it has
    moved; `served`: with what each server says about who serves the parts from part 1 on.
    """

    def __init__(
        self,
        hosts: Sequence[Address],
        open_channel: Callable[[Address], grpc.Channel],
        told: Callable[[Address, int], object] = lambda address, epoch: None,
        served: Callable[[Sequence[pb.PartServer]], object] = lambda parts: None,
    ) -> None:
        self._one = threading.Lock()
        self._open, self._told, self._served = open_channel, told, served
        self._channels = {address: open_channel(address) for address in hosts}
        self.address, self._epoch = hosts[0], 0
        # When it answered last, and the epoch in which others name it while it does not.
        self._reached = running.now()
        self._unreached: int | None = None
        # Servers that had ANSWER for the last question and gave none.
        self._slow: frozenset[Address] = frozenset()
        self._closed = False

    def seek(self) -> Sought:
        """Ask all servers who leads, and move to that one."""
        with self._one:
            asked, before = dict(self._channels), self.address
            request, brief = pb.FindCoordinatorRequest(unreached=self._unreached), self._slow
        heard, slow = self._heard(
            {
                address: _asked(channel, request, BRIEF if address in brief else ANSWER)
                for address, channel in asked.items()
            }
        )
        with self._one:
            # One that was asked briefly gets its time again: it may be slow only.
            self._slow = slow - brief
        found = [reply for reply in heard.values() if reply.address]
        newest = max(found, key=lambda reply: reply.epoch, default=None)
        moved = newest is not None and self._move(newest)
        self._note(newest, reached=moved or before in heard)
        for reply in heard.values():
            self._served(reply.parts)
            self.add(_addresses(reply.servers))
        present = before in heard and heard[before].address == str(before)
        return Sought(moved, present and not moved, bool(heard) or (bool(slow) and self.several))

    def _note(self, newest: pb.FindCoordinatorReply | None, *, reached: bool) -> None:
        """Note whether the server that others name has answered."""
        with self._one:
            now = running.now()
            self._reached = now if reached else self._reached
            named = newest is not None and newest.address == str(self.address)
            late = named and now - self._reached > UNREACHED
            self._unreached = newest.epoch if newest is not None and late else None

    def _heard(
        self, calls: Mapping[Address, Any]
    ) -> tuple[dict[Address, pb.FindCoordinatorReply], frozenset[Address]]:
        """Return what servers answered: all of them, or up to one that leads in a later epoch, for the one that led
        before may stand still. And those that were too slow to answer."""
        ended: queue.SimpleQueue[Address] = queue.SimpleQueue()
        under_way = {address: call for address, call in calls.items() if call is not None}
        for address, call in under_way.items():
            call.add_done_callback(lambda _, address=address: ended.put(address))
        heard, slow = {}, set[Address]()
        for _ in under_way:
            address = ended.get()
            reply = _answer(under_way[address])
            if reply is None:
                if under_way[address].code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                    slow.add(address)
            else:
                heard[address] = reply
                if reply.address == str(address) != str(self.address) and reply.epoch > self._epoch:
                    break
        return heard, frozenset(slow)

    def add(self, hosts: Iterable[Address]) -> None:
        """Ask these servers too."""
        with self._one:
            for address in hosts:
                if not self._closed and address not in self._channels:
                    self._channels[address] = self._open(address)

    @property
    def several(self) -> bool:
        """Whether there is another server that may come to lead."""
        return len(self._channels) > 1

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
        self._told(address, reply.epoch)
        former.close()
        return True

    def reopen(self) -> None:
        """Open all channels anew, as they are opened now. Calls under way end."""
        with self._one:
            if self._closed:
                return
            former = list(self._channels.values())
            self._channels = {address: self._open(address) for address in self._channels}
        for channel in former:
            channel.close()

    def watch(self, closing: threading.Event) -> None:
        """Ask again and again, in a thread of its own: a leader that stands still breaks no connection."""

        def ask() -> None:
            pause = EVERY
            while not closing.wait(pause):
                sought = self.seek()
                pause = EVERY if sought.present or sought.moved else SOON

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


def _addresses(texts: Iterable[str]) -> Iterator[Address]:
    """Parse those that are addresses."""
    for text in texts:
        with suppress(AddressError):
            yield parse_address(text)


def _asked(channel: grpc.Channel, request: pb.FindCoordinatorRequest, seconds: float) -> Any:
    """Ask one server; return the call, or None for a channel that was closed meanwhile."""
    try:
        return stub_of(channel).FindCoordinator.future(request, timeout=seconds)
    except ValueError:
        return None


def _answer(call: Any) -> pb.FindCoordinatorReply | None:
    try:
        reply: pb.FindCoordinatorReply = call.result()
        check(reply)
    except (grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError, BoundError, ValueError):
        # A server that does not answer says nothing; neither does a channel that was closed meanwhile.
        return None
    return reply
