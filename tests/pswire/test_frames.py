"""Hand-framed chunks: the same bytes as the generated classes, and never another error than FrameError."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pswire.transport.frames import (
    CHUNK_BYTES,
    ChunkView,
    FrameError,
    as_bytes,
    chunk_field,
    chunks,
    parse_pull,
    parse_push,
    pull_chunk,
)
from pswire.v1 import model_pb2, shard_pb2
from tests.repetitions import repetitions
from tests.sentences import Recorder

# Around the boundaries of varints of one, two, three, nine and ten bytes.
NUMBERS = st.sampled_from(
    [0, 1, 127, 128, 16383, 16384, 2**32, 2**56, 2**63 - 1, 2**63, 2**64 - 1]
) | st.integers(0, 2**64 - 1)


def push_chunk(offset: int, data: bytes) -> bytes:
    """A PushRequest with one chunk."""
    return b"".join(chunk_field(offset, data))


PAYLOADS = st.binary(max_size=300) | st.sampled_from([bytes(127), bytes(128), bytes(20000)])


@given(NUMBERS, PAYLOADS)
def test_push_chunks_are_what_protobuf_writes(offset: int, data: bytes) -> None:
    ours = push_chunk(offset, data)
    theirs = shard_pb2.PushRequest(chunk=model_pb2.Chunk(offset=offset, data=data)).SerializeToString()
    assert ours == theirs
    assert parse_push(theirs) == ChunkView(offset, memoryview(data))


@given(NUMBERS, PAYLOADS, st.none() | NUMBERS)
def test_pull_chunks_are_what_protobuf_writes(offset: int, data: bytes, total: int | None) -> None:
    ours = pull_chunk(offset, data, total)
    reply = shard_pb2.PullReply(chunk=model_pb2.Chunk(offset=offset, data=data), bytes=total or 0)
    assert ours == reply.SerializeToString()
    assert parse_pull(ours) == (ChunkView(offset, memoryview(data)), total or None)


def test_header_round_trip() -> None:
    header = shard_pb2.PushHeader(
        job="j", worker="w0", ticket=17, plan="abc", dtype=model_pb2.WIRE_DTYPE_BFLOAT16, bytes=2**40
    )
    assert parse_push(shard_pb2.PushRequest(header=header).SerializeToString()) == header


def test_parsing_copies_nothing() -> None:
    message = push_chunk(8, bytes(1000))
    chunk = parse_push(message)
    assert isinstance(chunk, ChunkView)
    assert np.shares_memory(np.frombuffer(message, np.uint8), np.frombuffer(chunk.data, np.uint8))


# Legal but unusual writings, which other clients may send: data before offset, a field twice (the
# last counts), an unknown field, a padded varint, two chunks in one message (they merge).
ODD = [
    (b"\x12\x05\x12\x01x\x08\x07", 7, b"x"),
    (b"\x12\x07\x08\x01\x08\x02\x12\x01y", 2, b"y"),
    (b"\x12\x07\x08\x01\x12\x01y\x28\x00", 1, b"y"),
    (b"\x28\x01\x12\x03\x12\x01y", 0, b"y"),
    (b"\x12\x06\x08\x81\x00\x12\x01y", 1, b"y"),
    (b"\x12\x02\x08\x05\x12\x03\x12\x01z", 5, b"z"),
]


@pytest.mark.parametrize(("message", "offset", "data"), ODD)
def test_unusual_but_legal_messages_are_understood(message: bytes, offset: int, data: bytes) -> None:
    theirs = shard_pb2.PushRequest.FromString(message)
    assert (theirs.chunk.offset, theirs.chunk.data) == (offset, data)
    assert parse_push(message) == ChunkView(offset, memoryview(data))


def test_a_header_after_a_chunk_wins_as_in_protobuf() -> None:
    message = (
        push_chunk(0, b"abc")
        + shard_pb2.PushRequest(header=shard_pb2.PushHeader(ticket=3)).SerializeToString()
    )
    assert parse_push(message) == shard_pb2.PushHeader(ticket=3)


@pytest.mark.parametrize(
    "message",
    [
        b"\x12",
        b"\x12\x05",
        b"\x12\x02\x12\x05",
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x12\x01\x08",
        b"\xff",
        b"\x0a\x02\x0a\xff",
        b"\x0a\x03\x0a\x01\xff",
        push_chunk(0, b"abcdef")[:-1],
    ],
)
def test_malformed_messages_are_refused(message: bytes, sentences: Recorder) -> None:
    with pytest.raises(FrameError) as refused:
        parse_push(message)
    sentences.check(refused)


def test_empty_messages() -> None:
    with pytest.raises(FrameError, match="with neither"):
        parse_push(b"")
    assert parse_pull(b"") == (ChunkView(0, memoryview(b"")), None)
    assert parse_pull(pull_chunk(0, b"", 0)) == (ChunkView(0, memoryview(b"")), None)


def fuzz() -> st.SearchStrategy[bytes]:
    """Random bytes, bytes that look like tags and lengths, and real messages with a few bytes changed."""
    real = st.builds(push_chunk, NUMBERS, PAYLOADS) | st.builds(pull_chunk, NUMBERS, PAYLOADS, NUMBERS)
    likely = st.lists(st.sampled_from([0x08, 0x0A, 0x10, 0x12, 0x80, 0xFF, 0, 1, 2, 3, 5]), max_size=24).map(
        bytes
    )
    return (
        st.binary(max_size=40)
        | likely
        | st.builds(mutate, real, st.integers(0), st.integers(0, 255), st.booleans())
    )


def mutate(message: bytes, at: int, byte: int, cut: bool) -> bytes:
    at %= len(message) + 1
    return message[:at] if cut else message[:at] + bytes([byte]) + message[at + 1 :]


@given(fuzz())
@settings(max_examples=repetitions(200, soak=20_000))
@example(b"\x12\x02\x12\x80")
def test_garbage_gives_the_generated_parsers_answer_or_a_frame_error(message: bytes) -> None:
    try:
        push = parse_push(message)
    except FrameError:
        assert (
            not parses(shard_pb2.PushRequest, message)
            or not shard_pb2.PushRequest.FromString(message).ListFields()
        )
    else:
        theirs = shard_pb2.PushRequest.FromString(message)
        if isinstance(push, ChunkView):
            assert (push.offset, bytes(push.data)) == (theirs.chunk.offset, theirs.chunk.data)
        else:
            assert push == theirs.header
    try:
        chunk, total = parse_pull(message)
    except FrameError:
        assert not parses(shard_pb2.PullReply, message)
    else:
        reply = shard_pb2.PullReply.FromString(message)
        assert (chunk.offset, bytes(chunk.data)) == (reply.chunk.offset, reply.chunk.data)
        assert (total or 0) == reply.bytes


def parses(kind: type[shard_pb2.PushRequest] | type[shard_pb2.PullReply], message: bytes) -> bool:
    from google.protobuf.message import DecodeError

    try:
        kind.FromString(message)
    except DecodeError:
        return False
    return True


@given(st.integers(0, 50), st.integers(1, 20))
def test_chunks_cover_the_payload_once_in_order(elements: int, size: int) -> None:
    payload = np.arange(elements, dtype=np.float32)
    pieces = list(chunks(payload, size))
    assert b"".join(bytes(view) for _, view in pieces) == payload.tobytes()
    assert [offset for offset, _ in pieces] == list(range(0, payload.nbytes, size))
    assert all(0 < view.nbytes <= size for _, view in pieces)


def test_chunks_of_ours_never_cut_an_element() -> None:
    assert CHUNK_BYTES % 8 == 0
    payload = np.zeros(CHUNK_BYTES // 4 + 1, np.float32)
    assert [view.nbytes for _, view in chunks(payload)] == [CHUNK_BYTES, 4]


def test_memory_that_no_view_can_show_is_refused(sentences: Recorder) -> None:
    with pytest.raises(ValueError, match="C-contiguous"):
        as_bytes(np.zeros((4, 4))[:, 1])
    with pytest.raises(ValueError, match="contiguous memory"):
        as_bytes(memoryview(bytes(8))[::2])
    with pytest.raises(ValueError) as refused:
        chunks(b"abc", 0)
    sentences.check(refused)
    with pytest.raises(ValueError, match="unsigned 64-bit"):
        push_chunk(-1, b"")
    assert as_bytes(np.zeros((0, 3), np.float32)).nbytes == 0
    assert as_bytes(np.array(1, np.float32)).nbytes == 4
