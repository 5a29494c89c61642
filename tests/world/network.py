"""Connections of the World: calls of gRPC whose frames go through memory.

A frame is the start of a call, a message, the end of one direction, or the status. Each frame takes a drawn time, in
order within its call. A connection may be cut before or after any frame: then all calls on it break at both ends.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import grpc

from pswire.transport.failures import CallEnded
from tests.world.clockwork import Process, World

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
# Seconds after which a peer notices that the other end is gone, and until an address at which nobody listens refuses.
NOTICED, REFUSED = 0.002, 0.01


class Network:
    """All connections. `pass_by(name)`: called with each frame before it is sent; says whether the connection is cut
    "before" or "after" it, or "". `delay()`: draws the seconds of a frame."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listening: dict[str, Listener] = {}
        self.connections: list[Connection] = []
        self.pass_by: Callable[[str], str] = lambda name: ""
        self.delay: Callable[[], float] = lambda: world.dice.uniform(0.0001, 0.001)

    def reached(self, address: str) -> bool:
        """Whether somebody listens there."""
        return address in self.listening and self.listening[address].open

    def connect(self, client: Process, address: str) -> "Connection":
        """Return a connection to who listens there; one that is not up if nobody does."""
        made = Connection(self, client, self.listening.get(address))
        if made.up:
            self.connections.append(made)
        return made

    def cut(self, connection: "Connection") -> None:
        """Break a connection: what is under way on it is lost."""
        if connection.up:
            connection.up = False
            self.connections.remove(connection)
            for call in list(connection.calls):
                call.broken()


class Connection:
    """A connection of a client with a server. `up`: it stands. `calls`: those that have not ended at both ends."""

    def __init__(self, network: Network, client: Process, server: "Listener | None") -> None:
        self.network, self.client, self.server = network, client, server
        self.up = server is not None and server.open and client.alive
        self.calls: list[Call] = []
        client.lost.append(lambda: network.cut(self))

    def of(self, process: Process) -> bool:
        return process is self.client or (self.server is not None and process is self.server.process)


class Call:
    """One call. What arrives at the client stands in `answers` and `status`."""

    def __init__(
        self, connection: Connection, path: str, serialize: Any, parse: Any, metadata: Iterable[Any] | None
    ) -> None:
        self.connection, self.path, self.metadata = connection, path, tuple(metadata or ())
        self.world, self._serialize, self._parse = connection.network.world, serialize, parse
        self.answers: deque[Any] = deque()
        self.status: tuple[grpc.StatusCode, str] | None = None
        self.context: Context | None = None
        # Whether the server has sent the status.
        self.finished = False
        self._last = {True: 0.0, False: 0.0}
        connection.calls.append(self)
        if connection.up and connection.server is not None:
            server = connection.server
            self.send(True, "start", lambda: server.accept(self))
        else:
            self.world.at(REFUSED, lambda: self.end(UNAVAILABLE, "Connection refused"))

    def arrived(self) -> None:
        """Something has arrived at the client."""

    def send(self, up: bool, what: str, deliver: Callable[[], object]) -> None:
        """Send a frame, to the server if `up`. `deliver` is called where it arrives."""
        connection, network, world = self.connection, self.connection.network, self.world
        if not connection.up or connection.server is None:
            return
        server = connection.server.process
        receiver = server if up else connection.client
        ends = f"{connection.client.name}{'>' if up else '<'}{server.name}"
        name = f"{ends} {self.path.rpartition('.')[2]} {what}"
        how = network.pass_by(name)
        if how == "before":
            world.say("cut before", name)
            network.cut(connection)
            return
        due = self._last[up] = max(self._last[up], world.now + network.delay())

        def arrive() -> None:
            if connection.up and receiver.alive:
                world.say(name)
                deliver()
            if how == "after":
                world.say("cut after", name)
                network.cut(connection)

        world.at(due - world.now, arrive)

    # Frames to the server

    def ask(self, message: Any) -> None:
        data = self._serialize(message) if self._serialize else message
        self.send(True, f"message {len(data)}", lambda: self._context.take(data))

    def no_more(self) -> None:
        self.send(True, "end", lambda: self._context.take(grpc.aio.EOF))

    @property
    def _context(self) -> "Context":
        assert self.context is not None, "the start of a call arrives first"
        return self.context

    def cancel(self) -> None:
        if self.status is None:
            self.end(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
            self.send(True, "cancel", self._cancelled)

    def _cancelled(self) -> None:
        if self.context is not None:
            self.context.cancel()

    # Frames to the client

    def answer(self, data: bytes) -> None:
        self.send(False, f"answer {len(data)}", lambda: self._take(data))

    def finish(self, code: grpc.StatusCode, details: str) -> None:
        self.finished = True
        self.send(False, f"status {code.name}", lambda: self.end(code, details))
        self._forget()

    def _forget(self) -> None:
        """Break no more with the connection, once both ends know how the call has ended."""
        if self.finished and self.status is not None and self in self.connection.calls:
            self.connection.calls.remove(self)

    def _take(self, data: bytes) -> None:
        self.answers.append(self._parse(data) if self._parse else data)
        self.arrived()

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """Take the status at the client."""
        if self.status is None:
            self.status = code, details
            self._forget()
            self.arrived()

    def broken(self) -> None:
        """Both ends notice, each in its time, that the connection broke."""
        self.world.at(NOTICED, lambda: self.end(UNAVAILABLE, "the connection broke"))
        self.world.at(NOTICED, self._cancelled)

    def error(self) -> CallEnded | None:
        """Return how the call has ended; None: well."""
        assert self.status is not None
        return None if self.status[0] is grpc.StatusCode.OK else CallEnded(*self.status)


class Listener:
    """What stands for a `grpc.aio.Server`: the methods of one server process at one address."""

    def __init__(self, network: Network, process: Process, loop: asyncio.AbstractEventLoop) -> None:
        self.network, self.process, self.loop = network, process, loop
        self.open = False
        self._handlers: list[Any] = []
        self._serving: list[asyncio.Task[None]] = []
        process.lost.append(self._close)

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self._handlers.extend(handlers)

    async def start(self) -> None:
        self.open = True

    async def stop(self, grace: float | None) -> None:
        self.open = False
        if self._serving:
            await asyncio.wait(list(self._serving), timeout=grace or 0)
        self._close()

    def _close(self) -> None:
        self.open = False
        for connection in [each for each in self.network.connections if each.server is self]:
            self.network.cut(connection)

    def accept(self, call: Call) -> None:
        call.context = Context(call, self)
        if self.open:
            self.loop.call_soon(self._begin, call)
        else:
            call.finish(UNAVAILABLE, "Cancelling all calls")

    def _begin(self, call: Call) -> None:
        details = SimpleNamespace(method=call.path, invocation_metadata=call.metadata)
        method = next(found for each in self._handlers if (found := each.service(details)))
        assert call.context is not None
        task = call.context.task = self.loop.create_task(self._serve(method, call, call.context))
        self._serving.append(task)
        task.add_done_callback(self._serving.remove)

    async def _serve(self, method: Any, call: Call, context: "Context") -> None:
        status = grpc.StatusCode.OK, ""
        try:
            await method.stream_stream(None, context)
        except CallEnded as ended:
            status = ended.code(), ended.details()
        except asyncio.CancelledError:
            status = UNAVAILABLE, "Cancelling all calls"
        call.finish(*status)
        for each in context.done:
            each(context)


class Context:
    """What a method sees of its call: a `grpc.aio.ServicerContext`."""

    def __init__(self, call: Call, server: Listener) -> None:
        self._call, self._server, self._loop = call, server, server.loop
        self._messages: deque[Any] = deque()
        self._come = asyncio.Event()
        self.done: list[Callable[[Any], object]] = []
        self.add_done_callback = self.done.append
        self.task: asyncio.Task[None] | None = None

    def take(self, message: Any) -> None:
        self._messages.append(message)
        self._loop.call_soon(self._come.set)

    async def read(self) -> Any:
        while not self._messages:
            self._come.clear()
            await self._come.wait()
        end = self._messages[0] is grpc.aio.EOF
        return grpc.aio.EOF if end else self._messages.popleft()

    async def write(self, message: bytes) -> None:
        self._call.answer(bytes(message))

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise CallEnded(code, details)

    def invocation_metadata(self) -> tuple[Any, ...]:
        return self._call.metadata

    def auth_context(self) -> dict[str, Iterable[bytes]]:
        return {}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def cancel(self) -> None:
        if self._server.process.alive and self.task is not None:
            self._loop.call_soon(self.task.cancel)
