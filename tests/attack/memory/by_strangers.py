"""Strangers that cost memory: large claims, half messages, answers that nobody reads."""

import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc

from pswire.model.plan import VariableSpec, make_plan
from pswire.transport.channels import RECEIVED_BYTES
from pswire.transport.framed_socket import FRAME_BYTES
from pswire.v1 import coordinator_pb2 as pb
from tests.attack.memory.http2 import STREAMS, Connection, grpc_message
from tests.attack.memory.target import Target
from tests.service.peer import join_request
from tests.service.serving import PATIENCE

METHODS = (
    "/pswire.v1.Coordinator/Join",
    "/pswire.v1.Coordinator/Session",
    "/pswire.v1.Coordinator/Status",
    "/pswire.v1.Shard/Push",
    "/pswire.v1.Shard/Pull",
    "/pswire.v1.Shard/Exchange",
    "/pswire.v1.Shard/Follow",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/no.such.Service/Method",
)


def large_claims(target: Target) -> str:
    """Joins whose model has 1 GiB, and 2**40 elements."""
    refused = []
    for elements in (2**28, 2**40):
        plan = make_plan([VariableSpec("w", (elements,))], 1)
        try:
            target.cluster.coordinator.Join(join_request(plan, worker="large", session="s"), timeout=PATIENCE)
        except grpc.RpcError as error:
            refused.append(error.code().name)
    return f"refused: {', '.join(refused)}"


def large_joins(target: Target) -> str:
    """64 at once of nearly 4 MiB each, with as many variables as there may be, four times."""
    variables = [VariableSpec(f"{number:05d}" + "x" * 220, (1,)) for number in range(2**14 - 1)]
    request = join_request(make_plan(variables, 1), worker="large", session="s").SerializeToString()
    answers = []
    join = target.cluster.channels[0].unary_unary("/pswire.v1.Coordinator/Join", None, None)

    def ask(number: int) -> None:
        try:
            join(request, timeout=4 * PATIENCE)
        except grpc.RpcError as error:
            answers.append(error.code().name)

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(ask, range(256)))
    counted = ", ".join(f"{answers.count(code)} {code}" for code in sorted(set(answers)))
    return f"{len(request) / 2**20:.1f} MiB each; answers: {counted}"


def half_messages(target: Target) -> str:
    """300 streams, on all methods in turn, with nearly all of the largest message on each."""
    largest = grpc_message(bytes(RECEIVED_BYTES - 1024), RECEIVED_BYTES - 1000)
    connections = [Connection(target.address) for _ in range(3)]
    sent = 0
    for connection in connections:
        opened = [connection.open(METHODS[n % len(METHODS)]) for n in range(STREAMS)]
        for stream in opened:
            sent += connection.say(stream, largest, 0.3)
    target.step()
    for connection in connections:
        connection.close()
    return f"{sent / 2**20:.0f} MiB were taken"


def too_large_messages(target: Target) -> str:
    """24 that announce 64 MiB, and send what the server takes of it."""
    connection, sent = Connection(target.address), 0
    for number in range(24):
        stream = connection.open(METHODS[number % len(METHODS)])
        sent += connection.say(stream, grpc_message(bytes(16 * 2**20), 64 * 2**20), 0.3)
    target.step()
    connection.close()
    return f"{sent / 2**20:.0f} MiB were taken"


def half_frames(target: Target) -> str:
    """255 connections to the data port that declare the largest frame and send nearly as much."""
    member = target.member("asks")
    target.step(member)
    port = target.offer(member).port
    member.leave()
    lines, frame = [], struct.pack("<IB", FRAME_BYTES, 0) + bytes(FRAME_BYTES - 1)
    for _ in range(255):
        lines.append(socket.create_connection(("127.0.0.1", port), timeout=0.05))
        with suppress(OSError):
            lines[-1].sendall(frame)
    target.step()
    for line in lines:
        line.close()
    return "none was taken for a member's"


def unread_status(target: Target) -> str:
    """2,000 questions for a thousand entries of the log each; no answer is read."""
    for _ in range(250):
        target.step()
    question = grpc_message(pb.StatusRequest(entries_from=0).SerializeToString())
    connections = [Connection(target.address, window=0) for _ in range(2000 // STREAMS)]
    for connection in connections:
        for _ in range(STREAMS):
            connection.say(connection.open("/pswire.v1.Coordinator/Status"), question, 0.05)
    target.step()
    for connection in connections:
        connection.close()
    return "an honest step was made meanwhile"
