"""How a light worker joins and keeps its connections; or stands before an echo."""

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio

from benchmarks.swarm.links import GrpcLink, SocketLink, channel
from benchmarks.swarm.member import Member, Model
from benchmarks.swarm.swarm import PAUSE, Swarm
from pswire.addresses import parse_hosts
from pswire.messages import specs_to_wire
from pswire.transport.codecs import FLOAT32
from pswire.transport.connecting import stub_of
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from psworker.engine import Grant

# The method of benchmarks/swarm/echo.py.
ECHO = "/bench.Echo/Exchange"


async def join(swarm: Swarm, hosts: list[str], sessions: int) -> None:
    async def one() -> None:
        async with swarm.gate:
            client = Client(swarm, swarm.model, hosts)
            try:
                await client.begin()
            except (OSError, RuntimeError, grpc.aio.AioRpcError) as error:
                told = error.details() if isinstance(error, grpc.aio.AioRpcError) else None
                client.member.end(f"it could not join: {told or error}")
        swarm.prepared += 1

    await asyncio.gather(*(one() for _ in range(sessions)))


async def echo(swarm: Swarm, port: int, sessions: int) -> None:
    """Members of nobody's job: another end that answers each commit at once shows what this process can do."""
    for number in range(sessions):
        _echoed(swarm, port, number)
        swarm.prepared += 1


def _echoed(swarm: Swarm, port: int, number: int) -> None:
    links: list[GrpcLink] = []
    member = Member(swarm.model, swarm, lambda server, message: links[server].send(message), _nothing)
    call = channel(f"127.0.0.1:{port}", payloads=True).stream_stream(ECHO)
    links.append(GrpcLink(call, lambda message: member.deliver(0, message), _nothing))
    member.admit(pb.JoinReply(job="echo", worker=f"w{number}", membership_token=bytes(16)), "echo")
    member.ready()
    member.engine.receive(Grant(1, 0, 0))
    member.adopt()
    swarm.members.append(member)


def _nothing(*arguments: object) -> None:
    """Nobody hears it."""


class Client:
    """Joins one member, and keeps its connections: control and payloads on channels of their own, as a worker does."""

    def __init__(self, swarm: Swarm, model: Model, hosts: list[str]) -> None:
        self._swarm, self._model, self._hosts = swarm, model, hosts
        self._control = channel(hosts[0])
        self._channels = [channel(host, payloads=True) for host in hosts]
        self._links: list[SocketLink | None] = [None] * len(hosts)
        self._unsent: list[list[bytes]] = [[] for _ in hosts]
        self._said: asyncio.Queue[pb.SessionRequest] = asyncio.Queue()
        self.member = Member(model, swarm, self._send, self._said.put_nowait)
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self) -> None:
        """Join, open the session, ask for a ticket."""
        stub: Any = stub_of(self._control)
        session = secrets.token_hex(16)
        request = pb.JoinRequest(
            session=session,
            variables=specs_to_wire(self._model.plan.variables),
            plan=self._model.plan.fingerprint,
            servers=len(self._hosts),
            wire_dtype=FLOAT32.number,
        )
        reply = await _insist(lambda: stub.Join(request))
        self.member.admit(reply, session)
        self._swarm.members.append(self.member)
        await _insist(lambda: self._open_session(stub))
        # Links are opened for the first payload, as a worker's are: a server knows its members from the log.
        self.member.ready()

    async def _open_session(self, stub: Any) -> None:
        call = stub.Session()
        await call.write(self.member.hello)
        first = await call.read()
        if first is grpc.aio.EOF:
            raise RuntimeError(f"the session ended: {await call.details()}")
        self._start(self._hear(call))
        self._start(self._speak(call))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hear(self, call: Any) -> None:
        ending = ""
        try:
            while (reply := await call.read()) is not grpc.aio.EOF:
                self.member.hear(reply.events)
        except grpc.aio.AioRpcError as error:
            ending = error.details() or str(error.code())
        self.member.end(f"the session ended: {ending or await call.details() or await call.code()}")

    async def _speak(self, call: Any) -> None:
        while self.member.alive:
            try:
                await call.write(await self._said.get())
            except (grpc.RpcError, asyncio.InvalidStateError) as error:
                # Nothing, where `_hear` has told the end already.
                self.member.end(f"the session takes nothing more: {error}")

    async def _open_link(self, server: int) -> None:
        """A socket. A stream asks where."""
        offered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def ended(code: int, reason: str) -> None:
            if not offered.done():
                offered.set_exception(RuntimeError(f"server {server}: {reason}"))

        call = self._channels[server].stream_stream("/pswire.v1.Shard/Exchange")
        stream, claim = GrpcLink(call, offered.set_result, ended), self.member.claim()
        stream.send(shard_pb2.ExchangeRequest(attach=claim).SerializeToString())
        offer = shard_pb2.ExchangeReply.FromString(await offered).attached
        stream.close()
        host = str(parse_hosts(self._hosts[server])[0].host)
        self._links[server] = await SocketLink.opened(
            *(host, offer.port, claim.SerializeToString()),
            lambda message: self.member.deliver(server, message),
            lambda code, reason: self._ended(server, code, reason),
        )

    def _send(self, server: int, message: bytes) -> None:
        link = self._links[server]
        if link is not None:
            link.send(message)
            return
        # There was none yet, or its stream ended with a refusal.
        self._unsent[server].append(message)
        if len(self._unsent[server]) == 1:
            self._start(self._reopen(server))

    async def _reopen(self, server: int) -> None:
        try:
            async with self._swarm.gate:
                await self._open_link(server)
        except (OSError, RuntimeError, grpc.RpcError) as error:
            self.member.end(str(error) or "no answer in time")
            return
        unsent, self._unsent[server] = self._unsent[server], []
        for message in unsent:
            self._send(server, message)

    def _ended(self, server: int, code: int, reason: str) -> None:
        link, self._links[server] = self._links[server], None
        if link is not None:
            link.close()
        if self.member.alive:
            self.member.ended(server, code, reason)


async def _insist(call: Any) -> Any:
    """While the server says "wait"."""
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            await asyncio.sleep(PAUSE)
