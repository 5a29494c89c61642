"""How much of its pace an honest worker keeps while others make a server work: a real ps-server, and floods.

    python -m tests.attack.load                every flood, as a table
    python -m tests.attack.load joins status   those whose names hold one of these words

Versions per second before, during and after each flood, and the ratios: all of one server, one after the other, so that
a busy machine slows them all down. The honest worker and each flooding thread are processes of their own.
"""

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain, repeat

import grpc
import numpy as np
from google.protobuf.message import Message

import psworker
from pswire.model.plan import VariableSpec, make_plan
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from pswire.v1.model_pb2 import Chunk
from tests.attack.memory.http2 import Connection, grpc_message
from tests.attack.memory.target import Target, target
from tests.service.peer import Peer, join_request, messages

SECONDS = 5.0
_pause = threading.Event()
FLOODERS = 4
PULL, SESSION = "/pswire.v1.Shard/Pull", "/pswire.v1.Coordinator/Session"


def honest(address: str, variables: tuple[VariableSpec, ...], name: str) -> None:
    """A worker that trains until it is killed."""
    ones = [(spec, np.ones(spec.shape, np.float32)) for spec in variables]
    gradient = {spec.name: np.zeros(spec.shape, np.float32) for spec in variables}
    with psworker.connect(address, ones, name=name) as session:
        while (grant := session.ready()) is not None:
            session.pull(grant)
            session.push(grant, gradient)
            session.commit(grant, samples=1, loss=0.5)


def _call_for_ever(address: str, path: str, messages: list[bytes]) -> None:
    channel = grpc.insecure_channel(address)
    method = channel.stream_stream(path, None, None)
    while True:
        with suppress(grpc.RpcError):
            list(method(iter(messages), timeout=60.0))


def _talk_for_ever(address: str, path: str, messages: list[bytes]) -> None:
    """One open call: the first message, then the second again and again."""
    channel = grpc.insecure_channel(address)
    first, again = messages
    for _ in channel.stream_stream(path, None, None)(chain([first], repeat(again))):
        pass


# Floods: each gives what one process calls again and again


Calls = tuple[str, list[bytes]]


def other_models(found: Target, dimensions: int) -> Calls:
    plan = make_plan([VariableSpec(f"v{n:05d}", (1,) * dimensions) for n in range(2**14)], 1)
    request = join_request(plan, worker="other", session="s")
    return "/pswire.v1.Coordinator/Join", [request.SerializeToString()]


def many_dimensions(found: Target) -> Calls:
    request = pb.JoinRequest(worker="other", session="s", plan="0" * 64, servers=1, wire_dtype=1)
    for number in range(2**14):
        request.variables.add(name=f"v{number}", shape=[1] * 64, dtype="float32", kind=1)
    return "/pswire.v1.Coordinator/Join", [request.SerializeToString()]


def pushes_of_nobody(found: Target) -> Calls:
    header = shard_pb2.PushHeader(
        job="job", worker="nobody", ticket=1, plan="0" * 64, dtype=1, bytes=2**22, membership_token=b"x" * 16
    )
    chunk = shard_pb2.PushRequest(chunk=Chunk(offset=0, data=bytes(2**22 - 64)))
    return "/pswire.v1.Shard/Push", [
        shard_pb2.PushRequest(header=header).SerializeToString(),
        *[chunk.SerializeToString()] * 4,
    ]


def large_first_pushes(found: Target) -> Calls:
    """The first message is no header, and has 4 MiB."""
    chunk = shard_pb2.PushRequest(chunk=Chunk(offset=0, data=bytes(2**22 - 64)))
    return "/pswire.v1.Shard/Push", [chunk.SerializeToString()]


def statuses(found: Target) -> Calls:
    return "/pswire.v1.Coordinator/Status", [b""]


def statuses_with_log(found: Target) -> Calls:
    return "/pswire.v1.Coordinator/Status", [pb.StatusRequest(entries_from=0).SerializeToString()]


def epochs(found: Target) -> Calls:
    member = found.member("sums")
    request = pb.GatherEpochRequest(
        job=member.job,
        worker=member.worker,
        incarnation=member.reply.incarnation,
        membership_token=member.reply.membership_token,
        number=0,
        layout="m",
        sums=[1.0] * 2**16,
    )
    return "/pswire.v1.Coordinator/GatherEpoch", [request.SerializeToString()]


def session_of(**message: Message) -> Callable[[Target], Calls]:
    """A member's session that says the same again and again."""

    def said(found: Target) -> Calls:
        hello = pb.SessionRequest(hello=found.member("loud").hello())
        return SESSION, [hello.SerializeToString(), pb.SessionRequest(**message).SerializeToString()]

    return said


def pulls_again(found: Target) -> Calls:
    member = found.member("puller")
    return PULL, [member.request(member.ready()).SerializeToString()]


def pushes_again(found: Target) -> Calls:
    """The same payload of an open ticket."""
    member = found.member("pusher")
    header, data = member.header(member.ready(), 0), bytes(found.nbytes)
    return "/pswire.v1.Shard/Push", [each.SerializeToString() for each in messages(header, data)]


def flood(
    calls: Callable[[Target], Calls], call: Callable[..., None] = _call_for_ever
) -> Callable[[Target, ExitStack], None]:
    def begin(found: Target, stack: ExitStack) -> None:
        path, messages = calls(found)
        for _ in range(FLOODERS if call is _call_for_ever else 1):
            _process(stack, call, found.address, path, messages)

    return begin


def _count_for_ever() -> None:
    for number in repeat(1):
        _ = number + 1


def busy(found: Target, stack: ExitStack) -> None:
    """As many processes as a flood has, which never call: what the machine's processors alone cost."""
    for _ in range(FLOODERS):
        _process(stack, _count_for_ever)


def stalled_readers(number: int) -> Callable[[Target, ExitStack], None]:
    """Members that take grants, pull and read nothing."""

    def begin(found: Target, stack: ExitStack) -> None:
        def stall(each: int) -> None:
            with suppress(Exception):
                member = found.member(f"slow-{each}")
                member.send(ready=pb.Ready())
                connection = Connection(found.address, window=0)
                stack.callback(connection.close)
                grant = member.receive("grant")
                connection.say(
                    connection.open(PULL), grpc_message(member.request(grant).SerializeToString()), 0.1
                )

        for each in range(number):
            threading.Thread(target=stall, args=(each,), daemon=True).start()

    return begin


def liars(number: int) -> Callable[[Target, ExitStack], None]:
    """Members that take grants and say nothing more."""

    def begin(found: Target, stack: ExitStack) -> None:
        for each in range(number):
            member: Peer = found.member(f"liar-{each}")
            member.send(ready=pb.Ready())

    return begin


def _process(stack: ExitStack, function: Callable[..., None], *arguments: object) -> None:
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments, daemon=True)
    process.start()
    stack.callback(process.join)
    stack.callback(process.kill)


@dataclass(frozen=True)
class Flood:
    name: str
    begin: Callable[[Target, ExitStack], None]
    mebibytes: float = 0.01
    options: tuple[str, ...] = ()
    seconds: float = SECONDS
    workers: int = 1


SYNC = ("--policy", "sync")
FLOODS = (
    Flood("busy processes that call nobody", busy),
    Flood("joins, 16,384 variables of 4 dimensions", flood(lambda found: other_models(found, 4))),
    Flood("joins, 16,384 variables of 64 dimensions", flood(many_dimensions)),
    Flood("pushes of nobody, 4 MiB a message", flood(pushes_of_nobody)),
    Flood("pushes that begin with 4 MiB", flood(large_first_pushes)),
    Flood("statuses", flood(statuses)),
    Flood("statuses with the log", flood(statuses_with_log)),
    Flood("epochs of 65,536 sums", flood(epochs)),
    Flood("a member: ready again and again", flood(session_of(ready=pb.Ready()), _talk_for_ever)),
    Flood("a member: commits of no ticket", flood(session_of(commit=pb.Commit(ticket=9**9)), _talk_for_ever)),
    Flood("a member: the same pull of 4 MiB", flood(pulls_again), mebibytes=4.0),
    Flood("a member: the same push of 4 MiB", flood(pushes_again), mebibytes=4.0),
    Flood("sync, 20 stalled readers", stalled_readers(20), options=SYNC, seconds=75.0),
    Flood("sync, 3 liars", liars(3), options=SYNC, seconds=75.0),
    Flood("async, 60 stalled readers of 8 MiB", stalled_readers(60), mebibytes=8.0, seconds=15.0),
)


@dataclass
class Measured:
    """Versions per second, and in each second of the flood."""

    before: float = 0.0
    during: float = 0.0
    after: float = 0.0
    each: list[float] = field(default_factory=list)


def measure(chosen: Flood) -> Measured:
    measured = Measured()
    with target(chosen.mebibytes, *chosen.options, trained=False) as found, ExitStack() as all_of_it:
        _process(all_of_it, honest, found.address, found.variables, "honest")
        while found.cluster.status().version < 20:
            _pause.wait(0.1)
        measured.before = _pace(found, SECONDS)
        with ExitStack() as stack:
            chosen.begin(found, stack)
            for _ in range(int(chosen.seconds)):
                measured.each.append(_pace(found, 1.0))
        measured.during = float(np.mean(measured.each))
        measured.after = _pace(found, SECONDS)
    return measured


def _pace(found: Target, seconds: float) -> float:
    began, first = time.monotonic(), found.cluster.coordinator.Status(pb.StatusRequest()).version
    _pause.wait(seconds)
    last = found.cluster.coordinator.Status(pb.StatusRequest()).version
    return (last - first) / (time.monotonic() - began)


def main(words: list[str]) -> int:
    print(f"{'flood':<42}{'before':>8}{'during':>8}{'after':>8}  ratios; versions in each second", flush=True)
    for each in FLOODS:
        if words and not any(word in each.name for word in words):
            continue
        found = measure(each)
        ratios = f"{found.during / found.before:.2f} {found.after / found.before:.2f}"
        row = f"{found.before:8.0f}{found.during:8.0f}{found.after:8.0f}"
        print(f"{each.name:<42}{row}  {ratios}; {' '.join(f'{pace:.0f}' for pace in found.each)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
