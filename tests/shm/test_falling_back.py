"""Where no memory can be shared, payloads travel over a socket or gRPC, and one log line says why; or the job is told
that it cannot."""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import closing, suppress

import pytest

import psworker
from psserver.service.store import shared_memory
from psserver.service.store.shared_memory import Sharing
from pswire.transport import segments
from pswire.transport import socket_handshake as handshake
from pswire.transport.framed_socket import DESCRIPTORS, HEAD, FramedSocket, SocketError
from pswire.transport.segments import HEADER, Place, Segment, SegmentError
from tests.sentences import Recorder
from tests.service.serving import Cluster, serving
from tests.shm.sessions import connect, step


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)


def trained(cluster: Cluster, transport: str = "auto") -> tuple[str, ...]:
    with connect(cluster.hosts, transport) as session:
        step(session, 0)
        step(session, 1)
        assert session.done().version == 2
        return session.transport


@pytest.mark.usefixtures("no_memory")
def test_a_server_without_memory_to_share(caplog: pytest.LogCaptureFixture) -> None:
    with serving(servers=2) as cluster:
        assert trained(cluster) == ("socket", "socket")
    said = [record.message for record in caplog.records if "no memory is shared" in record.message]
    assert len(said) == 2, "one line for each server"
    assert "No space left" in said[0]


def test_memory_that_ends_after_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise SegmentError("cannot get 16 bytes of shared memory: it is full")

    with serving() as cluster:
        monkeypatch.setattr(shared_memory, "ControlWord", full)
        assert trained(cluster) == ("socket",)


def test_a_server_that_was_told_not_to() -> None:
    with serving(transport="grpc") as cluster:
        assert trained(cluster) == ("grpc",)


def test_only_one_of_two_servers_shares() -> None:
    with serving(servers=2) as cluster:
        cluster.servers[1].probe.refuse_memory("not today")
        assert trained(cluster) == ("shared-memory", "socket")


def test_a_worker_that_insists_is_told_why_not(sentences: Recorder) -> None:
    with serving(transport="grpc") as cluster:
        with connect(cluster.hosts, "shared-memory") as session:
            with pytest.raises(psworker.Refused) as refused:
                session.ready()
            sentences.check(refused)


@pytest.mark.usefixtures("no_memory")
def test_a_server_that_insists_does_not_start(sentences: Recorder) -> None:
    with pytest.raises(SegmentError) as refused:
        Sharing("shared-memory")
    sentences.check(refused)


def test_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not see the server's Unix socket."""

    def nobody(name: str, first: bytes) -> None:
        raise SocketError(f"no connection to {name}: Connection refused")

    with serving() as cluster:
        monkeypatch.setattr(handshake, "connect_unix", nobody)
        assert trained(cluster) == ("socket",)


def test_a_worker_that_cannot_map_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(fd: int, nbytes: int, *, writable: bool) -> None:
        os.close(fd)
        raise SegmentError("a descriptor is of no shared memory: Permission denied")

    with serving() as cluster:
        monkeypatch.setattr(segments, "map_descriptor", denied)
        assert trained(cluster) == ("socket",)


def test_an_unknown_transport_is_named(sentences: Recorder) -> None:
    with pytest.raises(ValueError) as refused:
        connect("127.0.0.1:1", "pigeon")
    sentences.check(refused)


# Unknown peers


# Segments


def handed_over(*descriptors: int) -> FramedSocket:
    """The near end of a connection on which a frame has brought them."""
    near, far = socket.socketpair()
    with far:
        socket.send_fds(far, [HEAD.pack(2, 0) + b"ok"], list(descriptors))
    return FramedSocket(near)


def test_a_segment_is_mapped_from_its_descriptor() -> None:
    segment = Segment(64, writable=True)
    segments.words(segment.memory)[0] = 7
    with closing(handed_over(segment.place.fd)) as connection:
        assert connection.receive() == (b"ok", 0)
        (descriptor,) = connection.descriptors(1)
    other = segments.words(segments.map_descriptor(descriptor, 64, writable=False))
    del segment
    assert other[0] == 7 and not other.flags.writeable


def test_what_only_its_owner_writes_cannot_be_written_by_others() -> None:
    segment = Segment(64, writable=False)
    with pytest.raises(SegmentError):
        segments.map_descriptor(os.dup(segment.place.fd), 64, writable=True)


def unsealed() -> int:
    fd = os.memfd_create("stranger", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, HEADER + 64)
    return fd


def short() -> int:
    segment = Segment(32, writable=True)
    return os.dup(segment.place.fd)


@pytest.mark.parametrize(
    "opened",
    [
        lambda: os.open(os.devnull, os.O_RDONLY),
        unsealed,
        short,
        lambda: os.pipe()[0],
    ],
    ids=["a device", "without seals", "too short", "a pipe"],
)
def test_a_descriptor_that_is_no_memory_is_refused(opened: Callable[[], int], sentences: Recorder) -> None:
    descriptor = opened()
    with pytest.raises(SegmentError) as refused:
        segments.map_descriptor(descriptor, 64, writable=True)
    sentences.check(refused)
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_no_more_descriptors_are_taken_than_are_wanted(sentences: Recorder) -> None:
    segment = Segment(8, writable=True)
    file = os.fstat(segment.place.fd)

    def held() -> int:
        """Descriptors of that memory: others of this process come and go."""
        found = 0
        for each in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found += os.path.samestat(os.fstat(int(each)), file)
        return found

    assert held()
    with closing(handed_over(*[segment.place.fd] * (DESCRIPTORS + 1))) as connection:
        with pytest.raises(SocketError) as refused:
            connection.receive()
        sentences.check(refused)
    with closing(handed_over(segment.place.fd)) as connection:
        connection.receive()
        with pytest.raises(SocketError) as refused:
            connection.descriptors(2)
        sentences.check(refused)
    del segment
    assert not held(), "what nobody took is closed"


def test_servers_find_a_segment_by_its_place_and_know_it_by_its_token(sentences: Recorder) -> None:
    segment = Segment(64, writable=True)
    segments.words(segment.memory)[0] = 7
    place = segment.place
    other = segments.open_segment(place, writable=False)
    assert segments.words(other)[0] == 7
    with pytest.raises(SegmentError) as refused:
        segments.open_segment(Place(place.pid, place.fd, b"x" * 16, 64), writable=True)
    sentences.check(refused)
    with pytest.raises(SegmentError, match=f"has {HEADER + 64} bytes, expected"):
        segments.open_segment(Place(place.pid, place.fd, place.token, 32), writable=True)
    with pytest.raises(SegmentError) as refused:
        with open(os.devnull, encoding="ascii") as null:
            segments.open_segment(Place(place.pid, null.fileno(), place.token, 64), writable=True)
    sentences.check(refused)
    del segment
    with pytest.raises(SegmentError) as refused:
        segments.open_segment(place, writable=True)
    sentences.check(refused)


def test_nobody_can_cut_a_segment_short() -> None:
    segment = Segment(4096, writable=True)
    with pytest.raises(OSError, match="not permitted"):
        os.truncate(f"/proc/self/fd/{segment.place.fd}", 0)
