"""Hand-framed chunks: the same bytes as the generated classes, and never another error than FrameError."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pswire.transport.frames import CHUNK_BYTES, SMALL, FrameError, as_bytes, chunk_field, chunks, parsed
from pswire.v1 import model_pb2, shard_pb2
from tests.repetitions import repetitions
from tests.sentences import Recorder

Push = shard_pb2.PushRequest
# Around the boundaries of varints of one, two and three bytes, and of what is parsed by hand.
PAYLOADS = st.binary(max_size=300) | st.sampled_from(
    [bytes(127), bytes(128), bytes(SMALL - 3), bytes(SMALL), bytes(20000)]
)
HEADERS = st.none() | st.builds(
    shard_pb2.PushHeader,
    job=st.text(max_size=200),
    ticket=st.integers(0, 2**64 - 1),
    bytes=st.integers(0, 2**64 - 1),
    rows=st.lists(st.integers(0, 2**32 - 1), max_size=300),
)


def framed(header: shard_pb2.PushHeader | None, data: bytes) -> bytes:
    return b"".join([Push(header=header).SerializeToString(), *chunk_field(data)])


@given(HEADERS, PAYLOADS)
def test_messages_are_what_protobuf_writes(header: shard_pb2.PushHeader | None, data: bytes) -> None:
    ours = framed(header, data)
    assert ours == Push(header=header, chunk=data).SerializeToString()
    found, chunk = parsed(Push, ours)
    assert chunk == data and found.header == (header or shard_pb2.PushHeader())


def test_messages_without_a_chunk() -> None:
    header = shard_pb2.PushHeader(
        job="j", worker="w0", ticket=17, plan="abc", dtype=model_pb2.WIRE_DTYPE_BFLOAT16, bytes=2**40
    )
    assert parsed(Push, Push(header=header).SerializeToString()) == (Push(header=header), None)
    assert parsed(Push, b"") == (Push(), None)


def test_parsing_copies_nothing() -> None:
    message = framed(None, bytes(SMALL))
    _, chunk = parsed(Push, message)
    assert chunk is not None
    assert np.shares_memory(np.frombuffer(message, np.uint8), np.frombuffer(chunk, np.uint8))


# Legal but unusual writings, which other clients may send: an unknown field behind the chunk, a padded length, two
# chunks (the last counts), a header behind the chunk.
ODD = [
    b"\x7a\x01y\x28\x00",
    b"\x7a\x81\x00y",
    b"\x7a\x01x\x7a\x01y",
    b"\x7a\x01y\x0a\x02\x18\x03",
]


@pytest.mark.parametrize("message", ODD)
def test_unusual_but_legal_messages_are_understood(message: bytes) -> None:
    found, chunk = parsed(Push, message)
    assert chunk == b"y" and found.header == Push.FromString(message).header


def test_what_stands_beside_a_chunk_has_a_bound(sentences: Recorder) -> None:
    header = shard_pb2.PushHeader(job="j" * 2000)
    assert parsed(Push, framed(header, bytes(9000)), 3000)[1] == bytes(9000)
    with sentences.raises(FrameError):
        parsed(Push, framed(header, bytes(9000)), 1999)
    # A chunk in the middle counts as beside.
    with pytest.raises(FrameError, match="beside a chunk at the end"):
        parsed(Push, framed(None, bytes(9000)) + Push(header=header).SerializeToString(), 3000)


@pytest.mark.parametrize(
    "message",
    [
        b"\x7a",
        b"\x7a\x05",
        b"\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xff",
        b"\x0a\x02\x0a\xff",
        b"\x0a\x03\x0a\x01\xff",
        framed(None, b"abcdef")[:-1],
        framed(None, bytes(2 * SMALL))[:-1],
    ],
)
def test_malformed_messages_are_refused(message: bytes, sentences: Recorder) -> None:
    with sentences.raises(FrameError):
        parsed(Push, message)


def mutate(message: bytes, at: int, byte: int, cut: bool) -> bytes:
    at %= len(message) + 1
    return message[:at] if cut else message[:at] + bytes([byte]) + message[at + 1 :]


def fuzz() -> st.SearchStrategy[bytes]:
    """Random bytes, bytes that look like tags and lengths, and real messages with a few bytes changed."""
    real = st.builds(framed, HEADERS, PAYLOADS)
    likely = st.lists(st.sampled_from([0x08, 0x0A, 0x10, 0x7A, 0x80, 0xFF, 0, 1, 2, 3, 5]), max_size=24).map(
        bytes
    )
    return (
        st.binary(max_size=40)
        | likely
        | st.builds(mutate, real, st.integers(0), st.integers(0, 255), st.booleans())
    )


@given(fuzz())
@settings(max_examples=repetitions(200, soak=20_000))
@example(b"\x7a\x02\x12\x80")
def test_garbage_gives_the_generated_parsers_answer_or_a_frame_error(message: bytes) -> None:
    theirs: shard_pb2.PushRequest | None = None
    try:
        theirs = Push.FromString(message)
    except DecodeError:
        pass
    try:
        found, chunk = parsed(Push, message)
    except FrameError:
        # Other wire types are not in use, and are not skipped by hand.
        assert theirs is None or len(message) > SMALL
    else:
        assert theirs is not None and found.header == theirs.header
        assert (chunk or b"") == theirs.chunk


@given(st.integers(0, 50), st.integers(1, 20))
def test_chunks_cover_the_payload_once_in_order(elements: int, size: int) -> None:
    payload = np.arange(elements, dtype=np.float32)
    pieces = list(chunks(payload, size))
    assert b"".join(map(bytes, pieces)) == payload.tobytes()
    assert all(0 < view.nbytes <= size for view in pieces)


def test_chunks_of_ours_never_cut_an_element() -> None:
    assert CHUNK_BYTES % 8 == 0
    payload = np.zeros(CHUNK_BYTES // 4 + 1, np.float32)
    assert [view.nbytes for view in chunks(payload)] == [CHUNK_BYTES, 4]


def test_memory_that_no_view_can_show_is_refused(sentences: Recorder) -> None:
    with pytest.raises(ValueError, match="C-contiguous"):
        as_bytes(np.zeros((4, 4))[:, 1])
    with pytest.raises(ValueError, match="contiguous memory"):
        as_bytes(memoryview(bytes(8))[::2])
    with sentences.raises(ValueError):
        chunks(b"abc", 0)
    assert as_bytes(np.zeros((0, 3), np.float32)).nbytes == 0
    assert as_bytes(np.array(1, np.float32)).nbytes == 4
