"""The streams between the servers of a job with replicas: each server opens one to each other, and sends on it.

What waits while a message is being sent goes out as one. A broken stream loses what it carried; the protocol repeats.
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import grpc

from psserver.replication.messages import Item, Message
from psserver.service.errors import Refused, invalid, precondition
from psserver.service.net.loop import settle
from psserver.service.net.registration import Call, bounded, parsed
from psserver.service.replicas import wire
from psserver.service.replicas.bodies import Bodies, Body, Lies, Overwritten
from psserver.service.store.shared_memory import from_wire, to_wire
from pswire.addresses import Address, parse_address
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.security.credentials import Credentials
from pswire.transport.channels import CHANNEL_OPTIONS, Options
from pswire.transport.connecting import open_aio_channel
from pswire.transport.failures import CallEnding, may_pass, reason
from pswire.transport.segments import SegmentError
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

#: Seconds between two attempts to reach a server; that the last words may take.
PAUSE, FAREWELL = 0.1, 2.0


class Listener(NamedTuple):
    """Who is told what comes in: a message about the log of a part, with the items that came before it; a broken
    stream; the job's end; a piece of a copy; a follower's digest of a version; and each part of a request, before it is
    whole, with whether only a server that leads sends such."""

    receive: Callable[[int, int, Message], None]
    hold: Callable[[Item, Body], None]
    broke: Callable[[int], None]
    ends: Callable[[int, ExitCode, str], None]
    copy: Callable[[int, shard_pb2.CopyPiece], None]
    digest: Callable[[int, shard_pb2.VersionDigest], None]
    alive: Callable[[int, bool], None]


def greeting_proof(secret: bytes, sender: int, receiver: int, generation: int = 0) -> bytes:
    """Prove that server `sender` knows the job's secret, and is in that generation. Empty without one."""
    if not secret:
        return b""
    key = hashlib.blake2b(secret).digest()
    return hashlib.blake2b(
        f"replicate/{sender}/{receiver}/{generation}".encode(), key=key, digest_size=16
    ).digest()


class Link:
    """What this server sends to another one. The loop's thread owns it."""

    def __init__(
        self,
        server: int,
        greet: Callable[[], shard_pb2.Greeting],
        address: Callable[[], Address],
        bodies: Bodies,
    ) -> None:
        self.server, self.up = server, False
        self._greet, self._address, self._bodies = greet, address, bodies
        # Whether the other server reads items where they lie.
        self._reads = False
        self._parts: list[shard_pb2.ReplicatePart] = []
        self._filled = asyncio.Event()
        # Those who wait until the parts are written.
        self._writing: list[asyncio.Future[None]] = []
        # Items that this stream has carried, so that a repeated message does not carry them again.
        self._carried: set[Item] = set()
        self._last = False

    def send(self, message: Message, items: Iterable[tuple[Item, Body]], part: int) -> None:
        """Send a message about a part's log behind the items that it names. Nothing is kept for a server that is not
        there."""
        if not self.up:
            return
        for item, body in items:
            if item not in self._carried:
                self._carried.add(item)
                self._parts += wire.pieces(item, body, self._bodies.lies(body) if self._reads else None)
        self._parts.append(shard_pb2.ReplicatePart(message=wire.encode(message, part)))
        self._filled.set()

    def put(self, part: shard_pb2.ReplicatePart) -> None:
        """Send something that may be lost."""
        if self.up:
            self._parts.append(part)
            self._filled.set()

    async def carry(self, part: shard_pb2.ReplicatePart) -> bool:
        """Send one of many parts, and wait until it is on its way. Returns False if the stream broke."""
        if self.up:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writing.append(written)
            self.put(part)
            await written
        return self.up

    def forget(self, item: Item) -> None:
        self._carried.discard(item)

    def end(self, code: ExitCode, reason: str) -> None:
        """Send the last word."""
        self._last = True
        ending = shard_pb2.Shutdown(exit_code=int(code), reason=reason)
        self._parts.append(shard_pb2.ReplicatePart(ending=ending))
        self._filled.set()

    async def run(self, timeout: float, credentials: Credentials, broke: Callable[[int], None]) -> None:
        """Keep a stream open until the last word is sent."""
        while not self._last:
            address = self._address()
            if not address.port:
                await asyncio.sleep(PAUSE)
                continue
            channel = open_aio_channel(str(address), _options(timeout), credentials)
            try:
                await self._stream(channel, credentials)
            except grpc.RpcError as error:
                log.debug("no stream to server %d at %s: %s", self.server, address, error)
            finally:
                if self.up:
                    self.up = False
                    broke(self.server)
                self._parts.clear()
                self._carried.clear()
                self._written(self._writing)
                await channel.close()
            if not self._last:
                await asyncio.sleep(PAUSE)

    async def _stream(self, channel: grpc.aio.Channel, credentials: Credentials) -> None:
        call: Any = channel.stream_stream(
            "/pswire.v1.Shard/Replicate",
            request_serializer=shard_pb2.ReplicateRequest.SerializeToString,
            response_deserializer=shard_pb2.ReplicateReply.FromString,
        )(metadata=credentials.metadata)
        ending = CallEnding(call)
        try:
            first = shard_pb2.ReplicatePart(greeting=self._greet())
            await call.write(shard_pb2.ReplicateRequest(parts=[first]))
            reply = await call.read()
            if reply is grpc.aio.EOF:
                return
            self.up, self._reads = True, bool(reply.reads)
            sending = asyncio.ensure_future(self._send(call))
            try:
                # Nothing more is said: this is how the end is noticed.
                await call.read()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        except grpc.RpcError as raised:
            error = await ending.explained(raised)
            if not may_pass(error):
                log.error("%s", reason(error), extra=event("replica_refused", server=self.server))
            raise error from raised

    async def _send(self, call: Any) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            parts, self._parts = self._parts, []
            writing = list(self._writing)
            for request in wire.requests(parts):
                await call.write(request)
            self._written(writing)
            if self._last and not self._parts:
                await call.done_writing()
                return

    def _written(self, writing: list[asyncio.Future[None]]) -> None:
        self._writing = [each for each in self._writing if each not in writing]
        for each in writing:
            settle(each)


class Links:
    """The streams of server `server` to all others, and theirs to it. `hosts` becomes complete as others greet.

    `generation`: of this server; others are not heard. `bodies`: what items consist of.
    """

    def __init__(
        self,
        server: int,
        hosts: Sequence[Address],
        secret: bytes,
        listener: Listener,
        generation: int = 0,
        bodies: Bodies | None = None,
    ) -> None:
        self.hosts = list(hosts)
        self._bodies = bodies or Bodies()
        self._generation = generation
        #: Servers that have greeted this one at least once.
        self.met: set[int] = set()
        self._server, self._secret, self._listener = server, secret, listener
        self.links = {n: self._link(n) for n in range(len(hosts)) if n != server}
        self._tasks: list[asyncio.Task[None]] = []

    def _link(self, server: int) -> Link:
        def greet() -> shard_pb2.Greeting:
            return shard_pb2.Greeting(
                task_index=self._server,
                hosts=[str(each) for each in self.hosts],
                proof=greeting_proof(self._secret, self._server, server, self._generation),
                generation=self._generation,
                probe=None if (probe := self._bodies.probe()) is None else to_wire(probe),
            )

        return Link(server, greet, lambda: self.hosts[server], self._bodies)

    def start(self, timeout: float, credentials: Credentials) -> None:
        """Begin to connect, within the running loop."""
        broke = self._listener.broke
        self._tasks = [
            asyncio.create_task(link.run(timeout, credentials, broke)) for link in self.links.values()
        ]

    def send(self, to: int, message: Message, items: Iterable[tuple[Item, Body]], *, part: int = 0) -> None:
        self.links[to].send(message, items, part)

    def forget(self, item: Item) -> None:
        for link in self.links.values():
            link.forget(item)

    async def close(self, code: ExitCode | None = None, reason: str = "") -> None:
        """End the streams, with the job's exit code for the others if it is over."""
        if code is not None:
            for link in self.links.values():
                link.end(code, reason)
            await asyncio.wait(self._tasks, timeout=FAREWELL)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def replicate(self, call: Call) -> None:
        """Serve another server's stream."""
        sender: int | None = None
        arriving: dict[Item, bytearray] = {}
        try:
            while (data := await call.receive()) is not None:
                for part in bounded(parsed(shard_pb2.ReplicateRequest, data)).parts:
                    if sender is None:
                        sender = self._greeted(part)
                        await call.reply(shard_pb2.ReplicateReply(reads=self._reads(part.greeting)))
                    else:
                        self._take(sender, part, arriving)
                        if part.piece.size:
                            # A batch of large items would keep everything else from running for seconds.
                            await asyncio.sleep(0)
        finally:
            if sender is not None:
                self._listener.broke(sender)

    def _greeted(self, part: shard_pb2.ReplicatePart) -> int:
        """Return who greets. Raises Refused for anybody but a server of this job."""
        greeting = part.greeting
        sender = greeting.task_index
        if not part.HasField("greeting") or sender not in self.links:
            raise invalid("expected the greeting of another server of this job first")
        proof = greeting_proof(self._secret, sender, self._server, greeting.generation)
        if not hmac.compare_digest(proof, greeting.proof):
            raise precondition(
                f"server {self._server} talks to servers with its own job secret only: give all servers of the job "
                "the same PS_JOB_SECRET (ps-lab run does)"
            )
        if len(greeting.hosts) != len(self.hosts):
            raise precondition(
                f"server {self._server} is one of {len(self.hosts)}, and server {sender} one of "
                f"{len(greeting.hosts)}: give all servers the same --ps-hosts"
            )
        if greeting.generation != self._generation:
            raise Refused(
                grpc.StatusCode.UNAVAILABLE,
                f"server {self._server} is in generation {self._generation} of the job, and server {sender} in "
                f"{greeting.generation}: end all servers, remove the folder 'replication' of the run, and start all of "
                "them with --resume latest",
            )
        for number, text in enumerate(greeting.hosts):
            address = parse_address(text)
            if address.port and number != self._server:
                self.hosts[number] = address
        self.met.add(sender)
        return int(sender)

    def _reads(self, greeting: shard_pb2.Greeting) -> bool:
        return greeting.HasField("probe") and self._bodies.can_read(from_wire(greeting.probe))

    def _take(self, sender: int, part: shard_pb2.ReplicatePart, arriving: dict[Item, bytearray]) -> None:
        kind = part.WhichOneof("part")
        # Only who leads sends items and copies.
        self._listener.alive(sender, kind in ("piece", "copy"))
        match kind:
            case "piece":
                self._take_piece(part.piece, arriving)
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
            case other:
                raise invalid(f"expected a piece, a message, an ending, a copy or a digest, got {other}")

    def _take_piece(self, piece: shard_pb2.Piece, arriving: dict[Item, bytearray]) -> None:
        item = piece.epoch, piece.number
        if piece.HasField("segment"):
            try:
                body = self._bodies.read(Lies(from_wire(piece.segment), piece.use), piece.size)
            except Overwritten:
                raise Refused(
                    grpc.StatusCode.UNAVAILABLE, "an item was gone before it was read: send it again"
                ) from None
            except SegmentError as error:
                raise Refused(
                    grpc.StatusCode.UNAVAILABLE, f"an item cannot be read where it lies: {error}"
                ) from error
            self._listener.hold(item, body)
            return
        data = arriving.setdefault(item, bytearray())
        data += piece.data
        if piece.last:
            self._listener.hold(item, arriving.pop(item))


def _options(timeout: float) -> Options:
    """Each attempt is one of its own: no pause delays it that other channels to the address have earned."""
    return [*CHANNEL_OPTIONS(timeout), ("grpc.use_local_subchannel_pool", 1)]
