"""Floods of HTTP/2 on the gRPC port by who never meant to call: honest workers go on, and nothing is kept of them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psserver.service.guard import calls
from psserver.service.guard.limits import UNPROVEN, Limit
from tests.service.conftest import Steady
from tests.service.http2 import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RESET,
    Connection,
    frame,
    headers,
)
from tests.service.serving import PATIENCE, Cluster, serving, wait_until

# Streams of a flood, and what may stay of it: gRPC's pools and this process's own.
STREAMS, ROOM = 10_000, 48 * 2**20
AT_ONCE = 100


@pytest.fixture(scope="module")
def one() -> Iterator[Cluster]:
    with serving(servers=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def honest(one: Cluster) -> Iterator[Steady]:
    worker = Steady(one)
    # Afterwards all is compiled: the compiler alone takes a hundred MB.
    worker.step()
    yield worker
    worker.session.close()


def memory() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def reset_at_once(connection: Connection, path: str) -> bytes:
    stream = connection.stream()
    return frame(HEADERS, END_HEADERS, stream, headers(path)) + frame(RESET, 0, stream, CANCEL)


def called(connection: Connection, path: str) -> bytes:
    return frame(HEADERS, END_HEADERS | END_STREAM, connection.stream(), headers(path))


def large(connection: Connection, path: str) -> bytes:
    """More metadata than a server takes."""
    more = [("x-large", "y" * 15_000)]
    return frame(HEADERS, END_HEADERS | END_STREAM, connection.stream(), headers(path, more))


@pytest.mark.parametrize(
    ("each", "path", "streams"),
    [
        (reset_at_once, "/pswire.v1.Shard/Push", STREAMS),
        (called, "/no.such/Method", STREAMS),
        (called, "/pswire.v1.Shard/Pull", 1000),
        (large, "/pswire.v1.Coordinator/Status", 1000),
    ],
    ids=["reset Push", "unknown", "without a message", "large metadata"],
)
def test_streams_that_come_and_go(
    one: Cluster,
    honest: Steady,
    caplog: pytest.LogCaptureFixture,
    each: Callable[[Connection, str], bytes],
    path: str,
    streams: int,
) -> None:
    before = memory()
    connection = Connection(one.servers[0].address, PATIENCE)
    for sent in range(0, streams, AT_ONCE):
        flood = b"".join(each(connection, path) for _ in range(AT_ONCE))
        if not (connection.send(flood) and connection.answered()):
            # gRPC closes a connection on which too much is reset.
            connection.close()
            connection = Connection(one.servers[0].address, PATIENCE)
        if sent % (streams // 4) == 0:
            honest.step()
    connection.close()
    honest.step()
    assert memory() - before < ROOM
    assert not [record for record in caplog.records if record.exc_info]
    wait_until(lambda: not one.servers[0].server.watch.strangers, "the calls to end")


def test_metadata_without_end(one: Cluster, honest: Steady) -> None:
    """32 MiB of it: more than a server keeps, and the connection is closed."""
    before = memory()
    with Connection(one.servers[0].address, PATIENCE) as connection:
        stream = connection.stream()
        connection.send(frame(HEADERS, 0, stream, headers("/pswire.v1.Coordinator/Status")))
        field = b"\0" + b"\x03abc" + b"\x7f\x80\x7d" + b"z" * (127 + 125 * 128)
        assert not (
            all(connection.send(frame(CONTINUATION, 0, stream, field)) for _ in range(2000))
            and connection.answered()
        )
    honest.step()
    assert memory() - before < ROOM


def test_messages_that_never_come_whole(
    one: Cluster, honest: Steady, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that announce a message of 4 MiB and send a byte of it: as many as may be silent, in no memory."""
    # However long it takes until they are there.
    monkeypatch.setattr(calls, "FIRST_MESSAGE", Limit(10 * PATIENCE, "test"))
    server, before = one.servers[0].server, memory()
    connections = [Connection(one.servers[0].address, PATIENCE) for _ in range(8)]
    for connection in connections:
        for _ in range(AT_ONCE):
            stream = connection.stream()
            began = frame(DATA, 0, stream, b"\0\0\x40\0\0" + b"x")
            connection.send(frame(HEADERS, END_HEADERS, stream, headers("/pswire.v1.Shard/Push")) + began)
        connection.answered()
    wait_until(lambda: len(server.watch.strangers) >= UNPROVEN.value, "the calls to arrive")
    honest.step()
    assert memory() - before < ROOM
    for connection in connections:
        connection.close()
    wait_until(lambda: not server.watch.strangers, "the calls to end")
    honest.step()
