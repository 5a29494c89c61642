"""The other end of the generator's ceiling: answers each commit at once, with a grant and a version, and does no more.

Says {"port": n}, then serves until its input ends. Its argument: bytes of a version.
"""

import json
import selectors
import socket
import sys
import threading
from dataclasses import dataclass, field

from benchmarks.swarm.links import HEAD, Frames
from benchmarks.swarm.swarm import model_of
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2

RECEIVED = 1 << 16


@dataclass
class Connection:
    """`ticket`: the one that its member works on; 0 before it has shown its token."""

    socket: socket.socket
    frames: Frames = field(default_factory=Frames)
    ticket: int = 0


def serve(listening: socket.socket, nbytes: int) -> None:
    # The chunk that members push, as field 1 of an answer instead of field 2 of a request.
    chunks = [bytes([1 << 3 | 2]) + chunk[1:] for chunk in model_of(nbytes, 1).chunks[0]]
    size = 4 * model_of(nbytes, 1).plan.shards[0].elements
    watch = selectors.DefaultSelector()
    watch.register(listening, selectors.EVENT_READ)
    while True:
        for key, _ in watch.select():
            connection: Connection | None = key.data
            if connection is None:
                accepted, _ = listening.accept()
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                watch.register(accepted, selectors.EVENT_READ, Connection(accepted))
            elif not _answer(connection, chunks, size):
                watch.unregister(connection.socket)
                connection.socket.close()


def _answer(connection: Connection, chunks: list[bytes], size: int) -> bool:
    """False when it is over."""
    try:
        data = connection.socket.recv(RECEIVED)
        for message, _ in connection.frames.feed(data):
            if not connection.ticket:
                connection.ticket = 1
                connection.socket.sendall(HEAD.pack(0, 0))
            # A request with a commit has more than its chunk; further chunks of a payload begin with theirs.
            elif message[0] != 2 << 3 | 2:
                connection.socket.sendall(_reply(connection, chunks, size))
    except OSError:
        return False
    return bool(data)


def _reply(connection: Connection, chunks: list[bytes], size: int) -> bytes:
    ticket = connection.ticket
    connection.ticket += 1
    fate = pb.Disposition(ticket=ticket, fate=pb.Disposition.FATE_APPLIED, version=ticket, weight=1.0)
    events = [
        pb.SessionEvent(disposition=fate),
        pb.SessionEvent(grant=pb.Grant(ticket=ticket + 1, version=ticket, index=ticket)),
    ]
    head = shard_pb2.ExchangeReply(bytes=size, events=events).SerializeToString()
    return b"".join(HEAD.pack(len(message), 0) + message for message in (head + chunks[0], *chunks[1:]))


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(json.dumps({"port": listening.getsockname()[1]}), flush=True)
    threading.Thread(target=serve, args=(listening, int(sys.argv[1])), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
