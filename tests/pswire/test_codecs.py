"""Codecs: exact for float32, nearest-even for the short ones, against ml_dtypes and numpy as oracles."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pswire.model.plan import VariableSpec, make_plan
from pswire.transport.codecs import BFLOAT16, FLOAT16, FLOAT32, ElementDecoder, Elementwise, WireDtypeError
from pswire.transport.frames import chunks
from pswire.transport.wire import CODECS, codec_named, codec_numbered, wire_named
from pswire.v1 import model_pb2
from tests.sentences import Recorder

FLOATS = st.lists(st.floats(width=32), max_size=20).map(lambda values: np.array(values, np.float32))
ORACLE = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
NAMES = st.sampled_from(sorted(ORACLE))
LAYOUT = make_plan([VariableSpec("w", (2,))], 1).shards[0]


def elementwise(name: str) -> Elementwise:
    codec = codec_named(name)
    assert isinstance(codec, Elementwise)
    return codec


@given(FLOATS, NAMES)
def test_round_trip_rounds_as_the_oracle_does(values: np.ndarray, name: str) -> None:
    codec = elementwise(name)
    wire = codec.encode(values)
    assert wire.nbytes == codec.itemsize * values.size and wire.shape == values.shape
    out = np.full(values.shape, 99, np.float32)
    decoder = ElementDecoder(codec, out)
    fed = [decoder.feed(view) for view in chunks(wire, 8)]
    assert [start for start, _ in fed] == [0, *(stop for _, stop in fed)][: len(fed)]
    with np.errstate(over="ignore"):
        expected = values.astype(ORACLE[name]).astype(np.float32)
    np.testing.assert_array_equal(out, expected)


@given(FLOATS, NAMES, st.integers(4, 30))
def test_pieces_are_the_payload(values: np.ndarray, name: str, limit: int) -> None:
    codec = elementwise(name)
    pieces = list(codec.pieces(values, limit))
    assert all(0 < piece.nbytes <= limit for piece in pieces)
    assert b"".join(piece.tobytes() for piece in pieces) == codec.encode(values).tobytes()


@given(FLOATS, NAMES)
def test_elements_may_stay_as_they_travel(values: np.ndarray, name: str) -> None:
    codec = elementwise(name)
    out = np.empty(values.shape, codec.array_dtype)
    ElementDecoder(codec, out).feed(codec.encode(values).tobytes())
    assert out.tobytes() == codec.encode(values).tobytes() == codec.encode(out).tobytes()


def test_what_is_the_payload_already_is_not_copied() -> None:
    values = np.ones(3, np.float32)
    assert FLOAT32.encode(values) is values
    for codec in (BFLOAT16, FLOAT16):
        narrow = values.astype(codec.array_dtype)
        assert np.shares_memory(codec.encode(narrow), narrow)


def test_chunks_decode_at_odd_addresses() -> None:
    out = np.zeros(6, np.float32)
    wire = BFLOAT16.encode(np.array([1.5, -2], np.float32))
    decoder = ElementDecoder(BFLOAT16, out[2:4])
    assert decoder.feed(memoryview(b"x" + wire.tobytes())[1:]) == (0, 2)
    assert out.tolist() == [0, 0, 1.5, -2, 0, 0]


def test_numbers_and_names_agree_with_the_contract() -> None:
    values = set(model_pb2.WireDtype.values()) - {model_pb2.WIRE_DTYPE_UNSPECIFIED}
    assert {codec.number for codec in CODECS.values()} == values
    for number, codec in ((n, codec_numbered(n)) for n in values):
        assert model_pb2.WireDtype.Name(number) == f"WIRE_DTYPE_{codec.name.upper().replace('-', '_')}"
        assert codec_named(codec.name) is codec


def test_elementwise_codecs_remember_nothing() -> None:
    for codec in map(elementwise, ORACLE):
        assert codec.size(LAYOUT) == 2 * codec.itemsize and not codec.remembers
        encoder = codec.encoder(LAYOUT)
        first = encoder.encode(1, np.ones(2, np.float32)).tobytes()
        encoder.keep(1)
        assert encoder.base is None
        assert encoder.encode(2, np.ones(2, np.float32)).tobytes() == first


def test_gradients_and_weights_by_one_name() -> None:
    for name, up, down in (
        ("bfloat16", "bfloat16", "bfloat16"),
        ("int8", "int8", "float32"),
        ("int8/bfloat16", "int8", "bfloat16"),
        ("float32/bfloat16", "float32", "bfloat16"),
        ("top-k/int8", "top-k", "float32"),
    ):
        wire = wire_named(name)
        assert (wire.up.name, wire.down.name, wire.name) == (up, down, name)
        assert wire.same == (up == down)
    assert wire_named("int4/float32").name == "int4"
    assert wire_named("float16").array_dtype == np.float16
    assert wire_named("int8/bfloat16").array_dtype == np.float32
    for name, problem in (
        ("int9", "unknown wire dtype 'int9'; did you mean"),
        ("int8/", "unknown wire dtype ''"),
    ):
        with pytest.raises(WireDtypeError, match=problem):
            wire_named(name)


def test_misfits_are_refused(sentences: Recorder) -> None:
    with pytest.raises(WireDtypeError) as refused:
        codec_named("float8")
    sentences.check(refused)
    with pytest.raises(WireDtypeError) as refused:
        codec_numbered(0)
    sentences.check(refused)
    with pytest.raises(WireDtypeError) as refused:
        ElementDecoder(FLOAT32, np.zeros(2, np.float32)).feed(bytes(7))
    sentences.check(refused)
    decoder = ElementDecoder(FLOAT16, np.zeros(2, np.float32))
    decoder.feed(bytes(2))
    with pytest.raises(WireDtypeError) as refused:
        decoder.feed(bytes(4))
    sentences.check(refused)


def test_every_codec_is_named_where_a_user_looks() -> None:
    """But the one for a lesson, which is on the page about codecs."""
    root = Path(__file__).resolve().parents[2]
    for place in ("pswire/config/run_sections.py", "docs/experiments.md"):
        text = (root / place).read_text(encoding="utf-8")
        assert [name for name in CODECS if name not in text and name != "top-k-forgetful"] == [], place
