"""Wire dtypes: exact for float32, nearest-even for the short ones, against ml_dtypes and numpy as oracles."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pswire.transport.dtypes import WIRE, WireDtypeError, from_wire, itemsize, to_wire, wire_name
from pswire.transport.frames import chunks
from pswire.v1 import model_pb2

FLOATS = st.lists(st.floats(width=32), max_size=20).map(lambda values: np.array(values, np.float32))
ORACLE = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@given(FLOATS, st.sampled_from(sorted(WIRE)))
def test_round_trip_rounds_as_the_oracle_does(values: np.ndarray, dtype: str) -> None:
    wire = to_wire(values, dtype)
    assert wire.nbytes == values.size * itemsize(dtype) and wire.shape == values.shape
    out = np.full(values.shape, 99, np.float32)
    from_wire(b"".join(bytes(view) for _, view in chunks(wire, 6)), dtype, out)
    with np.errstate(over="ignore"):
        expected = values.astype(ORACLE[dtype]).astype(np.float32)
    np.testing.assert_array_equal(out, expected)


def test_float32_is_not_copied() -> None:
    values = np.ones(3, np.float32)
    assert to_wire(values, "float32") is values


def test_parts_decode_into_views_at_odd_addresses() -> None:
    out = np.zeros(6, np.float32)
    wire = to_wire(np.array([1.5, -2], np.float32), "bfloat16")
    from_wire(memoryview(b"x" + wire.tobytes())[1:], "bfloat16", out[2:4])
    assert out.tolist() == [0, 0, 1.5, -2, 0, 0]


def test_numbers_and_names_agree_with_the_contract() -> None:
    values = set(model_pb2.WireDtype.values()) - {model_pb2.WIRE_DTYPE_UNSPECIFIED}
    assert {wire_name(number) for number in values} == set(WIRE) and set(WIRE.values()) == values


def test_misfits_are_refused() -> None:
    with pytest.raises(WireDtypeError, match="unknown wire dtype 'float8'; did you mean \"float"):
        to_wire(np.ones(1, np.float32), "float8")
    with pytest.raises(
        WireDtypeError, match="unknown wire dtype number 0; known: float32, bfloat16, float16"
    ):
        wire_name(0)
    with pytest.raises(WireDtypeError, match="expected 8 bytes for 2 float32 elements, got 7"):
        from_wire(bytes(7), "float32", np.zeros(2, np.float32))
