"""Channels of gRPC in the World: blocking ones for the threads of a worker, and those of a server's event loop."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Self

import grpc

from pswire.addresses import Address
from tests.world.clockwork import Process
from tests.world.network import REFUSED, Call, Connection, Network

LATE = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


class Channel:
    """One connection at a time, made by the first call."""

    def __init__(self, network: Network, process: Process, address: Address | str) -> None:
        self.network, self.process, self.address = network, process, str(address)
        self._connection: Connection | None = None
        self.closed = False

    @property
    def connection(self) -> Connection:
        """The connection; one that is not up where nobody listens."""
        if self._connection is None or not self._connection.up:
            self._connection = self.network.connect(self.process, "" if self.closed else self.address)
        return self._connection

    def shut(self) -> None:
        """Close the channel, which ends its calls."""
        self.closed = True
        for call in [] if self._connection is None else list(self._connection.calls):
            call.cancel()


class BlockingChannel(Channel):
    """A `grpc.Channel` for the threads of a worker."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        super().__init__(network, process, address)
        self.close = self.shut
        self.stream_stream = partial(self._method, True)
        self.unary_stream = partial(self._method, False)

    def _method(
        self, asks: bool, path: str, serialize: Any = None, parse: Any = None
    ) -> "Callable[..., BlockingCall]":
        def call(given: Any, timeout: float | None = None, metadata: Any = None) -> BlockingCall:
            if self.closed:
                raise ValueError("Cannot invoke RPC on closed channel!")
            found = BlockingCall(self.connection, path, serialize, parse, metadata)
            self.process.begin(partial(found.give, given if asks else (given,)), "requests")
            if timeout is not None:
                self.network.world.at(timeout, partial(found.end, *LATE))
            return found

        return call

    def unary_unary(self, path: str, serialize: Any, parse: Any) -> "AskedOnce":
        return AskedOnce(self._method(False, path, serialize, parse))


class AskedOnce:
    """A method with one answer, now or as a future."""

    def __init__(self, future: "Callable[..., BlockingCall]") -> None:
        self.future = future

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.future(*given, **named).result()


class BlockingCall(Call):
    """A call of a worker: an iterator over its answers, and a future of the only one."""

    over: "Callable[[BlockingCall], object]" = staticmethod(lambda call: None)

    def add_done_callback(self, over: "Callable[[BlockingCall], object]") -> None:
        self.over = over

    def arrived(self) -> None:
        if self.status is not None:
            self.over(self)

    def result(self) -> Any:
        return next(self)

    def code(self) -> grpc.StatusCode | None:
        return None if self.status is None else self.status[0]

    def give(self, requests: Iterable[Any]) -> None:
        """Send the requests, in a thread of their own, as gRPC does."""
        for request in requests:
            if self.status is not None:
                return
            self.ask(request)
        self.no_more()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.answers and self.status is None:
            self.world.wait(lambda: self.answers or self.status)
        if self.answers:
            return self.answers.popleft()
        raise self.error() or StopIteration


class LoopChannel(Channel):
    """A `grpc.aio.Channel` for the event loop of a server."""

    def __init__(
        self, network: Network, process: Process, address: Address | str, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(network, process, address)
        self.loop = loop

    async def channel_ready(self) -> None:
        while not self.connection.up:
            await asyncio.sleep(REFUSED)

    async def close(self) -> None:
        self.shut()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.shut()

    def stream_stream(
        self, path: str, request_serializer: Any, response_deserializer: Any
    ) -> "Callable[..., LoopCall]":
        return partial(LoopCall, self, path, request_serializer, response_deserializer)

    def unary_stream(
        self, path: str, request_serializer: Any, response_deserializer: Any
    ) -> "Callable[..., LoopCall]":
        def call(request: Any, timeout: float | None = None) -> LoopCall:
            made = LoopCall(self, path, request_serializer, response_deserializer, timeout)
            made.ask(request)
            made.no_more()
            return made

        return call

    def unary_unary(self, *given: Any) -> Callable[..., Any]:
        ask = self.unary_stream(*given)
        return lambda request, timeout=None: ask(request, timeout).read()


class LoopCall(Call):
    """A call of a server to another one."""

    def __init__(
        self,
        channel: LoopChannel,
        path: str,
        serialize: Any,
        parse: Any,
        timeout: float | None = None,
        metadata: Iterable[Any] | None = None,
    ) -> None:
        self._loop, self._come = channel.loop, asyncio.Event()
        super().__init__(channel.connection, path, serialize, parse, metadata)
        if timeout is not None:
            self._loop.call_later(timeout, self.end, *LATE)

    def arrived(self) -> None:
        self._loop.call_soon(self._come.set)

    def add_done_callback(self, call: object) -> None:
        """Do nothing: no write hides how a call ends here."""

    async def _until(self, come: Callable[[], object]) -> None:
        while not come():
            self._come.clear()
            await self._come.wait()

    async def write(self, message: Any) -> None:
        if self.status is not None:
            raise self.error() or asyncio.InvalidStateError("the call has ended")
        self.ask(message)

    async def done_writing(self) -> None:
        self.no_more()

    async def read(self) -> Any:
        await self._until(lambda: self.answers or self.status)
        if self.answers:
            return self.answers.popleft()
        error = self.error()
        if error is not None:
            raise error
        return grpc.aio.EOF

    async def __aiter__(self) -> Any:
        while (found := await self.read()) is not grpc.aio.EOF:
            yield found
