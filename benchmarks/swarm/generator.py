"""Many light workers in one process and one event loop, steered by the benchmark.

Commands: join {hosts, sessions, nbytes} or echo {port, sessions, nbytes}, which begin; prepared {}, how far that is;
measure {seconds, rate, servers}, a burst during which CPU time of the processes `servers` is read; release {}.
"""

import asyncio
import os
import resource
import secrets
import threading
import time
from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio
import psutil

from benchmarks.programs.json_commands import serve
from benchmarks.swarm.links import GrpcLink, SocketLink, Unavailable, channel
from benchmarks.swarm.member import Member, Model
from pswire.addresses import parse_hosts
from pswire.model.plan import VariableSpec, make_plan
from pswire.model.specs import specs_to_wire
from pswire.transport.codecs import FLOAT32
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import coordinator_pb2_grpc, shard_pb2
from psworker.engine import Grant

# Workers that join, or open a link, at the same time.
AT_ONCE = 16
# Between two attempts of a server that says "wait"; seconds.
PAUSE = 0.2
# Commits that are not counted at the beginning of a burst, as a share of it, and at most; seconds.
WARM_UP, LONGEST_WARM_UP = 0.2, 1.0
# A burst in which nobody has committed yet goes on for so long; seconds.
LONGEST = 60.0
VARIABLES = 4


def model_of(nbytes: int, servers: int) -> Model:
    """`nbytes` of weights in a few vectors."""
    elements = max(1, nbytes // 4 // VARIABLES)
    return Model(make_plan([VariableSpec(f"v{i}", (elements,)) for i in range(VARIABLES)], servers))


class Swarm:
    """All members, and what is counted of them. The loop's thread owns everything."""

    def __init__(self, model: Model) -> None:
        self.members: list[Member] = []
        self.prepared = 0
        self.links: dict[str, int] = {}
        self.losses: list[str] = []
        self.now = time.monotonic
        # Whoever joins, or opens a link.
        self.gate = asyncio.Semaphore(AT_ONCE)
        self._model = model
        self._parked: list[Member] = []
        self._running = False
        # Between two commits of one member; seconds, 0 for as soon as it can.
        self._interval = 0.0
        self._counting = False
        self._seconds: list[float] = []

    # For members

    def runnable(self, member: Member) -> None:
        if not self._running:
            self._parked.append(member)
        elif not self._interval:
            member.contribute()
        else:
            now = time.monotonic()
            # Late ones do not catch up in a burst of their own.
            member.next_at = max(member.next_at + self._interval, now)
            asyncio.get_running_loop().call_at(member.next_at, self._due, member)

    def _due(self, member: Member) -> None:
        if not self._running:
            self._parked.append(member)
        elif member.alive and member.fresh:
            member.contribute()

    def committed(self, member: Member, seconds: float) -> None:
        if self._counting:
            self._seconds.append(seconds)

    def lost(self, member: Member, reason: str) -> None:
        self.losses.append(reason)

    @property
    def alive(self) -> int:
        """Members that take part."""
        return sum(member.alive for member in self.members)

    # Bursts

    async def measure(self, seconds: float, rate: float, watched: list[psutil.Process]) -> dict[str, Any]:
        """`rate`: commits per second of all members; 0: as many as there can be. `watched`: the servers."""
        alive = max(1, self.alive)
        self._interval = alive / rate if rate else 0.0
        self._running = True
        parked, self._parked = self._parked, []
        begin = time.monotonic()
        for place, member in enumerate(parked):
            # Evenly over the interval: they did not start together.
            member.next_at = begin + self._interval * (place / alive - 1)
            self.runnable(member)
        await asyncio.sleep(min(LONGEST_WARM_UP, WARM_UP * seconds))
        self._seconds, self._counting = [], True
        begin, cpu, servers = time.monotonic(), time.process_time(), cpu_of(watched)
        await asyncio.sleep(seconds)
        while not self._seconds and time.monotonic() - begin < LONGEST and self.alive:
            # A rate of nothing says nothing.
            await asyncio.sleep(PAUSE)
        self._counting = self._running = False
        took, spent, waits = time.monotonic() - begin, time.process_time() - cpu, sorted(self._seconds)
        servers = cpu_of(watched) - servers
        return {
            "commits": len(waits),
            "seconds": took,
            "cpu": spent,
            "server_cpu": servers,
            "p50": quantile(waits, 0.5),
            "p99": quantile(waits, 0.99),
            "longest": waits[-1] if waits else None,
            "lost": len(self.losses),
            "losses": sorted(set(self.losses))[:3],
        }

    # Members of a job

    async def join(self, hosts: list[str], sessions: int, nbytes: int) -> None:
        async def one() -> None:
            async with self.gate:
                client = _Client(self, self._model, hosts)
                try:
                    await client.begin()
                except (OSError, RuntimeError, grpc.aio.AioRpcError) as error:
                    told = error.details() if isinstance(error, grpc.aio.AioRpcError) else None
                    client.member.end(f"it could not join: {told or error}")
            self.prepared += 1

        await asyncio.gather(*(one() for _ in range(sessions)))

    async def echo(self, port: int, sessions: int, nbytes: int) -> None:
        """Members of nobody's job: another end that answers each commit at once shows what this process can do."""
        for number in range(sessions):
            await self._echoed(port, number)
            self.prepared += 1

    async def _echoed(self, port: int, number: int) -> None:
        links: list[SocketLink] = []
        member = Member(self._model, self, lambda server, message: links[server].send(message), _nothing)
        links.append(
            await SocketLink.opened(
                "127.0.0.1", port, b"echo", lambda message: member.deliver(0, message), _nothing
            )
        )
        member.admit(pb.JoinReply(job="echo", worker=f"w{number}", membership_token=bytes(16)), "echo")
        member.ready()
        member.engine.receive(Grant(1, 0, 0))
        member.adopt()
        self.members.append(member)


def _nothing(*arguments: object) -> None:
    """Nobody hears it."""


class _Client:
    """Joins one member, and keeps its connections: control and payloads on channels of their own, as a worker does."""

    def __init__(self, swarm: Swarm, model: Model, hosts: list[str]) -> None:
        self._swarm, self._model, self._hosts = swarm, model, hosts
        self._control = channel(hosts[0])
        self._channels = [channel(host, payloads=True) for host in hosts]
        self._liveness: list[GrpcLink | None] = [None] * len(hosts)
        self._links: list[SocketLink | GrpcLink | None] = [None] * len(hosts)
        self._unsent: list[list[bytes]] = [[] for _ in hosts]
        self._said: asyncio.Queue[pb.SessionRequest] = asyncio.Queue()
        self.member = Member(model, swarm, self._send, self._said.put_nowait)
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self) -> None:
        """Join, open the session, ask for a ticket."""
        stub: Any = coordinator_pb2_grpc.CoordinatorStub(self._control)
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
        try:
            while (reply := await call.read()) is not grpc.aio.EOF:
                self.member.hear(reply.events)
        except grpc.RpcError:
            # The status says which.
            pass
        self.member.end(f"the session ended: {await call.details() or await call.code()}")

    async def _speak(self, call: Any) -> None:
        while self.member.alive:
            try:
                await call.write(await self._said.get())
            except (grpc.RpcError, asyncio.InvalidStateError):
                return

    async def _open_link(self, server: int) -> None:
        """A socket, if the server has one; else the stream on which it was asked for."""
        offered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def first(message: bytes) -> None:
            if offered.done():
                self.member.deliver(server, message)
            else:
                offered.set_result(message)

        def ended(code: int, reason: str) -> None:
            if not offered.done():
                offered.set_exception(RuntimeError(f"server {server}: {reason}"))
            else:
                self._ended(server, code, reason)

        call = self._channels[server].stream_stream("/pswire.v1.Shard/Exchange")
        stream = self._liveness[server] = GrpcLink(call, first, ended)
        stream.send(self.member.attach())
        offer = shard_pb2.ExchangeReply.FromString(await offered).attached
        host = str(parse_hosts(self._hosts[server])[0].host)
        try:
            if not offer.port:
                raise Unavailable("the server offers no port")
            self._links[server] = await SocketLink.opened(
                *(host, offer.port, offer.token),
                lambda message: self.member.deliver(server, message),
                lambda code, reason: self._ended(server, code, reason),
            )
            kind = "socket"
        except Unavailable:
            self._links[server] = stream
            kind = "grpc"
        self._swarm.links[kind] = self._swarm.links.get(kind, 0) + 1

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
            self.member.end(str(error))
            return
        unsent, self._unsent[server] = self._unsent[server], []
        for message in unsent:
            self._send(server, message)

    def _ended(self, server: int, code: int, reason: str) -> None:
        link, stream = self._links[server], self._liveness[server]
        self._links[server] = self._liveness[server] = None
        for each in (link, stream):
            if each is not None:
                each.close()
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


def cpu_of(processes: list[psutil.Process]) -> float:
    """CPU seconds that they have taken so far."""
    return float(sum(sum(each.cpu_times()[:2]) for each in processes))


def quantile(ordered: list[float], share: float) -> float | None:
    """Of sorted numbers; None without any."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


class Generator:
    """The commands: main thread; the swarm lives in the thread of its loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="loop", daemon=True).start()
        self._swarm: Swarm | None = None
        self._joining: Any = None

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def join(self, hosts: str, sessions: int, nbytes: int) -> None:
        places = hosts.split(",")
        self._swarm = Swarm(model_of(nbytes, len(places)))
        self._joining = self._submit(self._swarm.join(places, sessions, nbytes))

    def echo(self, port: int, sessions: int, nbytes: int) -> None:
        self._swarm = Swarm(model_of(nbytes, 1))
        self._joining = self._submit(self._swarm.echo(port, sessions, nbytes))

    def prepared(self) -> dict[str, Any]:
        swarm = self._swarm
        assert swarm is not None, "join comes first"
        done = self._joining.done()
        if done:
            self._joining.result()
        waiting = sum(not (member.fresh or not member.alive) for member in swarm.members)
        return {
            "joined": swarm.prepared,
            "done": done,
            # Without a ticket and its version yet.
            "waiting": waiting,
            "links": swarm.links,
            "lost": len(swarm.losses),
            "losses": sorted(set(swarm.losses))[:3],
        }

    def measure(self, seconds: float, rate: float, servers: list[int]) -> dict[str, Any]:
        assert self._swarm is not None, "join comes first"
        watched = [psutil.Process(pid) for pid in servers]
        result: dict[str, Any] = self._submit(self._swarm.measure(seconds, rate, watched)).result()
        return result

    def release(self) -> None:
        """The process ends with its input: nothing is said to the servers, which end too."""


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    steered = Generator()
    serve(
        {
            "join": steered.join,
            "echo": steered.echo,
            "prepared": steered.prepared,
            "measure": steered.measure,
            "release": steered.release,
        }
    )
    # Two thousand connections are the system's to close.
    os._exit(0)
