"""The streams between the servers of a job with replicas: each server opens one to each other, and sends on it."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Final, NamedTuple

from psserver.replication.messages import Item, Message
from psserver.service.errors import RequestRefused, invalid, precondition, unavailable
from psserver.service.net.connection import SocketConnection
from psserver.service.net.loop import settle
from psserver.service.net.registration import Call, bounded, parsed
from psserver.service.net.sockets import SocketListener
from psserver.service.replicas import wire
from psserver.service.replicas.bodies import Bodies, Body, Lies, Overwritten
from psserver.service.replicas.link import ServerLink
from psserver.service.store.shared_memory import from_wire, to_wire
from pswire.addresses import Address, parse_address
from pswire.bounds import HEADER_BYTES
from pswire.exits import ExitCode
from pswire.security.credentials import Credentials
from pswire.transport import segments
from pswire.transport.segments import SegmentError
from pswire.v1 import shard_pb2

#: Seconds that the last words may take.
FAREWELL: Final = 2.0
TOKEN_BYTES: Final = 16
VERSION: Final = version("paramserver")
# Parts of a request that only a server sends which leads.
LEADERS: Final = frozenset(("piece", "copy"))


class LogListener(NamedTuple):
    """Who is told what comes in: a message about the log of a part, with the items that came before it; a broken
    stream; the job's end; a piece of a copy; a follower's digest of a version; a request, before its parts are taken,
    with whether only a server that leads sends such; a follower's part of a checkpoint; and that workers do not
    reach who leads in an epoch."""

    receive: Callable[[int, int, Message], None]
    hold: Callable[[Item, Body], None]
    broke: Callable[[int], None]
    ends: Callable[[int, ExitCode, str], None]
    copy: Callable[[int, shard_pb2.CopyPiece], None]
    digest: Callable[[int, shard_pb2.VersionDigest], None]
    alive: Callable[[int, bool], None]
    saved: Callable[[int, shard_pb2.Saved], None] = lambda sender, saved: None
    unreached: Callable[[int, int], None] = lambda sender, epoch: None


@dataclass(eq=False, slots=True)
class Arriving:
    """Another server's stream. `connection`: the socket in its place, if any; `over`: done when that has ended;
    `refused`: why this server ended it."""

    sender: int
    over: asyncio.Future[None]
    connection: SocketConnection | None = None
    refused: RequestRefused | None = None
    # Items of which pieces are missing.
    items: dict[Item, bytearray] = field(default_factory=dict)


class Links:
    """The streams of server `server` to all others, and theirs to it. `hosts` becomes complete as others greet.

    `generation`: of this server; others are not heard. `bodies`: what items consist of. `sockets`: where what follows
    a greeting goes, and comes from; None: gRPC alone.
    """

    def __init__(
        self,
        server: int,
        hosts: Sequence[Address],
        listener: LogListener,
        generation: int = 0,
        bodies: Bodies | None = None,
        sockets: SocketListener | None = None,
    ) -> None:
        self.hosts = list(hosts)
        self.sockets, self.version = sockets, VERSION
        self._bodies = bodies or Bodies()
        self._generation = generation
        #: Servers that have greeted this one at least once.
        self.met: set[int] = set()
        self._server, self._listener = server, listener
        self.links = {n: self._link(n) for n in range(len(hosts)) if n != server}
        self._tasks: list[asyncio.Task[None]] = []
        # The stream that each server began last.
        self._newest: dict[int, Arriving] = {}

    def _link(self, server: int) -> ServerLink:
        def greet() -> shard_pb2.Greeting:
            return shard_pb2.Greeting(
                task_index=self._server,
                hosts=[str(each) for each in self.hosts],
                generation=self._generation,
                probe=None if (probe := self._bodies.probe()) is None else to_wire(probe),
                place=segments.here(),
                version=self.version,
            )

        return ServerLink(server, greet, lambda: self.hosts[server], self._bodies, self.sockets)

    def start(self, timeout: float, credentials: Credentials) -> None:
        """Begin to connect, within the running loop."""
        broke = self._listener.broke
        self._tasks = [
            asyncio.create_task(link.run(timeout, credentials, broke)) for link in self.links.values()
        ]

    def send(self, to: int, message: Message, items: Iterable[tuple[Item, Body]], *, part: int = 0) -> None:
        self.links[to].send(message, items, part)

    def flush(self) -> None:
        """Send what waits now, and not in the loop's next turn."""
        for link in self.links.values():
            link.flush()

    def forget(self, item: Item) -> None:
        for link in self.links.values():
            link.forget(item)

    async def close(self, code: ExitCode | None = None, reason: str = "") -> None:
        """End the streams behind all that was said, with the job's exit code for the others if it is over."""
        for link, task in zip(self.links.values(), self._tasks, strict=False):
            if code is not None:
                link.end(code, reason)
            elif link.up:
                link.finish()
            else:
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FAREWELL)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def replicate(self, call: Call) -> None:
        """Serve another server's stream, or the socket that is offered on it."""
        data = await call.receive(HEADER_BYTES)
        if data is None:
            return
        first = next(iter(bounded(parsed(shard_pb2.ReplicateRequest, data)).parts), shard_pb2.ReplicatePart())
        stream = Arriving(self._greeted(first), asyncio.get_running_loop().create_future())
        self._newest[stream.sender] = stream
        token = secrets.token_bytes(TOKEN_BYTES)
        if self.sockets is not None:
            self.sockets.expected[token] = partial(self._frames, stream)
        receiving = asyncio.ensure_future(self._receive(stream, call))
        try:
            offer = None if self.sockets is None else self._offer(token, first.greeting)
            await call.reply(shard_pb2.ReplicateReply(reads=self._reads(first.greeting), offer=offer))
            await asyncio.wait({receiving, stream.over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            receiving.cancel()
            (ended,) = await asyncio.gather(receiving, return_exceptions=True)
            if self.sockets is not None:
                self.sockets.expected.pop(token, None)
            if stream.connection is not None:
                stream.connection.cut()
            self._ended(stream)
        if stream.refused is not None:
            raise stream.refused
        if isinstance(ended, Exception):
            raise ended

    def _offer(self, token: bytes, greeting: shard_pb2.Greeting) -> shard_pb2.Attached:
        """Offer a socket in the stream's place."""
        assert self.sockets is not None
        near = greeting.place == segments.here() != ""
        return shard_pb2.Attached(
            token=token, socket=self.sockets.name if near else "", port=self.sockets.port
        )

    async def _receive(self, stream: Arriving, call: Call) -> None:
        while (data := await call.receive()) is not None:
            self._take_all(stream, data)
            # A batch of large items would keep everything else from running for seconds.
            await asyncio.sleep(0)

    async def _frames(self, stream: Arriving, connection: SocketConnection) -> None:
        stream.connection = connection
        try:
            await connection.send((shard_pb2.Attached().SerializeToString(),))
            while (frame := await connection.receive()) is not None:
                self._take_all(stream, bytes(frame))
        except RequestRefused as refused:
            stream.refused = refused.afresh()
            raise
        finally:
            self._ended(stream)
            settle(stream.over)

    def _ended(self, stream: Arriving) -> None:
        """Notice that a stream broke, unless its sender has begun another one."""
        if self._newest.get(stream.sender) is stream:
            del self._newest[stream.sender]
            self._listener.broke(stream.sender)

    def _take_all(self, stream: Arriving, data: bytes) -> None:
        """Take a request, and send at once what follows from it. What is to be executed comes after that."""
        parts = bounded(parsed(shard_pb2.ReplicateRequest, data)).parts
        kinds = [part.WhichOneof("part") for part in parts]
        # Only who leads sends items and copies.
        self._listener.alive(stream.sender, not LEADERS.isdisjoint(kinds))
        for kind, part in zip(kinds, parts, strict=True):
            self._take(stream, kind, part)
        self.flush()

    def _greeted(self, part: shard_pb2.ReplicatePart) -> int:
        """Return who greets. Raises Refused for anybody but a server of this job."""
        greeting = part.greeting
        sender = greeting.task_index
        if not part.HasField("greeting") or sender not in self.links:
            raise invalid("expected the greeting of another server of this job first")
        if greeting.version != self.version:
            raise precondition(
                f"server {self._server} is of version {self.version} of the software, and server {sender} of "
                f"{greeting.version or 'an older one'}: install the same version on all servers of the job"
            )
        if len(greeting.hosts) != len(self.hosts):
            raise precondition(
                f"server {self._server} is one of {len(self.hosts)}, and server {sender} one of "
                f"{len(greeting.hosts)}: give all servers the same --ps-hosts"
            )
        if greeting.generation != self._generation:
            raise unavailable(
                f"server {self._server} is in generation {self._generation} of the job, and server {sender} in "
                f"{greeting.generation}: end all servers, remove the folder 'replication' of the run, and start all of "
                "them with --resume latest",
            )
        for number, text in enumerate(greeting.hosts):
            address = parse_address(text)
            # Others may know of one that has moved only where it was.
            believed = number == sender or not self.hosts[number].port
            if address.port and number != self._server and believed:
                self.hosts[number] = address
        self.met.add(sender)
        return int(sender)

    def _reads(self, greeting: shard_pb2.Greeting) -> bool:
        return greeting.HasField("probe") and self._bodies.can_read(from_wire(greeting.probe))

    def _take(self, stream: Arriving, kind: str | None, part: shard_pb2.ReplicatePart) -> None:
        sender = stream.sender
        match kind:
            case "piece":
                self._take_piece(part.piece, stream.items)
            case "message":
                self._listener.receive(sender, *wire.decode(part.message))
            case "ending":
                try:
                    code = ExitCode(part.ending.exit_code)
                except ValueError as error:
                    raise invalid(f"expected an exit code, got {part.ending.exit_code}") from error
                self._listener.ends(sender, code, part.ending.reason)
            case "copy":
                self._listener.copy(sender, part.copy)
            case "digest":
                self._listener.digest(sender, part.digest)
            case "saved":
                self._listener.saved(sender, part.saved)
            case "unreached":
                self._listener.unreached(sender, part.unreached.epoch)
            case other:
                raise invalid(
                    "expected a piece, a message, an ending, a copy, a digest, what is saved, or who is not reached, "
                    f"got {other}"
                )

    def _take_piece(self, piece: shard_pb2.Piece, arriving: dict[Item, bytearray]) -> None:
        item = piece.epoch, piece.number
        if piece.HasField("segment"):
            try:
                body = self._bodies.read(Lies(from_wire(piece.segment), piece.use), piece.size)
            except Overwritten:
                raise unavailable("an item was gone before it was read: send it again") from None
            except SegmentError as error:
                raise unavailable(f"an item cannot be read where it lies: {error}") from error
            self._listener.hold(item, body)
            return
        data = arriving.setdefault(item, bytearray())
        data += piece.data
        if piece.last:
            self._listener.hold(item, arriving.pop(item))
