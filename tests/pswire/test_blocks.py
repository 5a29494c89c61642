"""Block codecs against a dumb twin, one block at a time, and the laws of error feedback."""

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pswire.model.plan import ShardLayout, VariableSpec, make_plan
from pswire.transport.blocks import INT4, INT8, TOP_K, BlockCodec, runs
from pswire.transport.codecs import NotFinite, WireDtypeError
from tests.promises import promise
from tests.repetitions import repetitions
from tests.sentences import Recorder

CODECS = (INT8, INT4, TOP_K)
MOST = {"int8": 127, "int4": 7, "top-k": 127}

# Rows of several blocks with a rest, of one short block, too short to be coded, and state.
VARIABLES = (
    VariableSpec("wide", (3, 2500)),
    VariableSpec("odd", (5, 33)),
    VariableSpec("bias", (7,)),
    VariableSpec("mean", (40,), kind="state"),
    VariableSpec("whole", (2, 4096)),
)
LAYOUT = make_plan(VARIABLES, 1).shards[0]

PLAIN = st.floats(-10, 10, width=32)
ODD = st.sampled_from([0.0, -0.0, 1e-45, -1e-44, 1.2e-38, 3.4028235e38, -3.4028235e38, 1.0, -1.0])


@st.composite
def gradients(draw: st.DrawFn) -> np.ndarray:
    values = np.random.default_rng(draw(st.integers(0, 2**32))).normal(size=LAYOUT.elements)
    values = (values * draw(st.sampled_from([1e-40, 1e-3, 1.0, 1e30]))).astype(np.float32)
    for _ in range(draw(st.integers(0, 40))):
        values[draw(st.integers(0, LAYOUT.elements - 1))] = draw(PLAIN | ODD)
    return values


def encoded(codec: BlockCodec, values: np.ndarray, layout: ShardLayout = LAYOUT) -> np.ndarray:
    return codec.encoder(layout).encode(1, values)


def decoded(
    codec: BlockCodec, payload: np.ndarray, layout: ShardLayout = LAYOUT, cut: int = 777
) -> np.ndarray:
    out = np.full(layout.elements, 99, np.float32)
    decoder = codec.decoder(layout, out)
    spans = [decoder.feed(payload[start : start + cut].data) for start in range(0, payload.size, cut)]
    ends = [span for span in spans if span != (0, 0)]
    assert all(before[1] == after[0] for before, after in pairwise(ends)) and ends[-1][1] == layout.elements
    return out


def twin(codec: BlockCodec, values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """The payload and what is decoded, one block after another, in scalars of float32."""
    payload, arrives = b"", np.empty_like(values)
    for run in runs(LAYOUT):
        for start in range(run.start, run.start + run.rows * run.width, run.width):
            row = values[start : start + run.width]
            if not run.coded:
                payload += row.tobytes()
                arrives[start : start + run.width] = row
                continue
            for at in range(0, run.width, codec.block):
                record, back = block(codec, row[at : at + codec.block])
                payload += record
                arrives[start + at : start + at + back.size] = back
    return payload, arrives


def block(codec: BlockCodec, values: np.ndarray) -> tuple[bytes, np.ndarray]:
    most = MOST[codec.name]
    places = list(range(values.size))
    if codec.sparse:
        ranked = sorted(places, key=lambda place: (-abs(float(values[place])), place))
        places = sorted(ranked[: max(1, values.size // 64)])
    limit = np.float32(np.nextafter(np.float32(np.finfo(np.float32).max / most), np.float32(0)))
    scale = min(np.float32(max(abs(values[place]) for place in places) / np.float32(most)), limit)
    levels, back = [], np.zeros_like(values)
    for place in places:
        level = int(np.rint(values[place] / scale)) if scale else 0
        levels.append(max(-most, min(most, level)))
        back[place] = np.float32(levels[-1]) * scale
    record = struct.pack("<f", scale)
    if codec.sparse:
        record += struct.pack(f"<{len(places)}H", *places)
    if codec is INT4:
        levels += [0] * (len(levels) % 2)
        pairs = zip(levels[::2], levels[1::2], strict=True)
        return record + bytes((low & 15) | (high & 15) << 4 for low, high in pairs), back
    return record + struct.pack(f"<{len(levels)}b", *levels), back


@promise("Chunks that cut scales and rows decode alike.")
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@settings(max_examples=repetitions(20, soak=2000, fast=10))
@given(gradients(), st.integers(1, 9000))
def test_the_twin_makes_the_same_bits(codec: BlockCodec, values: np.ndarray, cut: int) -> None:
    payload, arrives = twin(codec, values)
    assert encoded(codec, values).tobytes() == payload
    assert len(payload) == codec.size(LAYOUT)
    found = decoded(codec, encoded(codec, values), cut=cut)
    np.testing.assert_array_equal(found, arrives)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("servers", [2, 3])
def test_the_same_bits_on_any_number_of_servers(codec: BlockCodec, servers: int) -> None:
    arrays = [np.random.default_rng(3).normal(size=spec.shape).astype(np.float32) for spec in VARIABLES]
    found = []
    for number in (1, servers):
        plan = make_plan(VARIABLES, number)
        flats = zip(plan.shards, plan.scatter(arrays), strict=True)
        found.append(
            plan.gather([decoded(codec, encoded(codec, flat, shard), shard) for shard, flat in flats])
        )
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@promise("What was sent and the residual are all gradients, exactly in whole numbers.")
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_what_was_sent_and_the_residual_are_all_gradients(codec: BlockCodec) -> None:
    """In whole numbers: gradients and residuals are multiples of a scale that stays the same."""
    random = np.random.default_rng(5)
    encoder, sent = codec.encoder(LAYOUT), np.zeros(LAYOUT.elements)
    total = np.zeros(LAYOUT.elements)
    for ticket in range(1, 30):
        gradient = random.integers(-9, 10, LAYOUT.elements).astype(np.float32)
        total += gradient
        payload = encoder.encode(ticket, gradient)
        sent += decoded(codec, payload)
        encoder.keep(ticket)
    np.testing.assert_allclose(sent + encoder.residual, total, rtol=0, atol=2e-3)


def test_without_error_feedback_top_k_never_sends_what_is_always_small() -> None:
    layout = make_plan([VariableSpec("w", (1, 64))], 1).shards[0]
    gradient = np.full(64, 0.5, np.float32)
    gradient[7] = 1
    with_it, without = TOP_K.encoder(layout), np.zeros(64)
    sent = np.zeros(64)
    for ticket in range(1, 200):
        sent += decoded(TOP_K, with_it.encode(ticket, gradient), layout)
        with_it.keep(ticket)
        without += decoded(TOP_K, encoded(TOP_K, gradient, layout), layout)
    assert np.count_nonzero(without) == 1
    assert np.count_nonzero(sent) == 64


@promise("A commit that was dropped leaves no trace in the residual.")
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_only_what_is_committed_counts(codec: BlockCodec) -> None:
    encoder = codec.encoder(LAYOUT)
    values = np.random.default_rng(1).normal(size=LAYOUT.elements).astype(np.float32)
    first = encoder.encode(1, values).tobytes()
    assert encoder.encode(1, values).tobytes() == first and encoder.base is None
    encoder.keep(2)
    assert encoder.base is None and not encoder.residual.any()
    encoder.keep(1)
    kept = encoder.residual.copy()
    assert encoder.base == 1 and kept.any()
    second = encoder.encode(2, values).tobytes()
    assert second != first
    encoder.keep(2)
    # The second is dropped: as if it had never been encoded. Once more changes nothing.
    for _ in range(2):
        encoder.take_back(2)
        assert encoder.base == 1
        np.testing.assert_array_equal(encoder.residual, kept)
    assert encoder.encode(3, values).tobytes() == second


@promise("NaN and infinity are found; the smallest and largest numbers and zeros pass.")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_what_is_not_finite_is_found_before_a_scale_hides_it(codec: BlockCodec, bad: float) -> None:
    values = np.zeros(LAYOUT.elements, np.float32)
    place = next(run.start for run in runs(LAYOUT) if run.coded) + 40
    values[place] = bad
    encoder = codec.encoder(LAYOUT)
    with pytest.raises(NotFinite, match=f"got {bad} at element {place}"):
        encoder.encode(1, values)
    encoder.keep(1)
    assert not encoder.residual.any() and encoder.base is None


ROW = make_plan([VariableSpec("w", (1, 128))], 1).shards[0]


@promise("Bytes that no encoder makes are refused, with the elements that they stand for.")
@pytest.mark.parametrize(
    ("codec", "change", "problem"),
    [
        (INT8, {0: b"\0\0\xc0\x7f"}, "a scale that is not finite"),
        (INT8, {0: b"\0\0\x80\x7f"}, "a scale that is not finite"),
        (INT8, {0: b"\0\0\x80\xbf"}, "no negative scale"),
        (INT8, {0: b"\0\0\0\x80"}, "no negative scale"),
        (INT8, {9: b"\x80"}, "no smaller than"),
        (INT8, {0: b"\0\0\0\0"}, "beside a scale of zero"),
        (INT4, {5: b"\x81"}, "no smaller than"),
        (TOP_K, {4: b"\x80\0"}, "places that rise"),
        (TOP_K, {4: b"\x09\0\x09\0"}, "places that rise"),
        (TOP_K, {4: b"\x09\0\x08\0"}, "places that rise"),
        (TOP_K, {8: b"\x80"}, "no smaller than"),
    ],
)
def test_what_no_encoder_writes_is_refused(codec: BlockCodec, change: dict[int, bytes], problem: str) -> None:
    payload = bytearray(encoded(codec, np.arange(1, 129, dtype=np.float32), ROW).tobytes())
    for place, wrong in change.items():
        payload[place : place + len(wrong)] = wrong
    with pytest.raises(WireDtypeError, match=f"elements 0 to 128: expected .*{problem}"):
        codec.decoder(ROW, np.empty(128, np.float32)).feed(payload)


def test_an_odd_block_of_int4_ends_with_zero(sentences: Recorder) -> None:
    layout = make_plan([VariableSpec("w", (1, 33))], 1).shards[0]
    payload = encoded(INT4, np.ones(33, np.float32), layout)
    assert payload[-1] == 7
    payload[-1] = 0x17
    with pytest.raises(WireDtypeError) as refused:
        INT4.decoder(layout, np.empty(33, np.float32)).feed(payload.data)
    sentences.check(refused)


def test_bytes_behind_the_end_are_refused(sentences: Recorder) -> None:
    payload = encoded(INT8, np.ones(128, np.float32), ROW)
    decoder = INT8.decoder(ROW, np.empty(128, np.float32))
    decoder.feed(payload.data)
    with pytest.raises(WireDtypeError) as refused:
        decoder.feed(b"\0")
    sentences.check(refused)


def test_short_rows_and_state_travel_as_they_are() -> None:
    coded = {run.width for run in runs(LAYOUT) if run.coded}
    assert coded == {2500, 33, 4096}
    assert sum(run.rows * run.width for run in runs(LAYOUT) if run.coded) == LAYOUT.trainable - 7
    values = np.random.default_rng(2).normal(size=LAYOUT.elements).astype(np.float32)
    found = decoded(INT4, encoded(INT4, values))
    for run in runs(LAYOUT):
        part = slice(run.start, run.start + run.rows * run.width)
        assert np.array_equal(found[part], values[part]) is not run.coded
