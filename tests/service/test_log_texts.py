"""Lines of the log are those of `json`, byte for byte."""

import json
import math
from dataclasses import fields
from itertools import product
from typing import Any

import numpy as np
import pytest

from psserver.decisions import entries
from psserver.decisions.entries import KINDS, Commit, Grant, Job, Part
from psserver.decisions.records import line_of, value_text
from pswire import protocol

TEXT = 'w"0\\\n\u202eé\x00'
WHOLE = (0, -1, 2**53)
REAL = (0.0, -0.0, 1.0, 0.1, 1e-7, 1e16, 1e22, 123456.789012345, math.nan, math.inf, -math.inf)
OTHERS: tuple[Any, ...] = (None, True, False, TEXT, "", np.float64(0.1), {"a": 1, "b": [1.5, TEXT]}, ())


def slow(index: int, t: float, entry: Any) -> str:
    return json.dumps(
        {"i": index, "t": round(t, 6), **entry.to_json()}, separators=(",", ":"), allow_nan=False
    )


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_kind_with_any_value_in_each_field(kind: type[Any]) -> None:
    usual: dict[str, Any] = {field.name: 1 for field in fields(kind)}
    for name, value in product(usual, (*WHOLE, *REAL, *OTHERS)):
        if kind is Commit and name in protocol.Times._fields and not isinstance(value, int | float | None):
            continue
        if isinstance(value, float) and not math.isfinite(value) and name in protocol.Times._fields:
            # Held against the clock before they are recorded: they are finite.
            continue
        entry = kind(**{**usual, name: value})
        assert line_of(7, 1.23456789, entry) == slow(7, 1.23456789, entry)


def test_an_update_of_several_parts() -> None:
    parts = tuple(Part(n, f"w{n}", 3, n, 1 / 3, 1.0, None if n else 0.04) for n in range(3))
    entry = entries.Apply(4, 1 / 3, 1.0, parts)
    assert line_of(0, 0.0, entry) == slow(0, 0.0, entry)


def test_times_are_whole_microseconds() -> None:
    entry = Commit("w0", 1, 2, 3, 0.5, 1.0, 0.12345678, 1e-9, None)
    assert json.loads(line_of(0, 0.0, entry))["pull"] == 0.123457
    assert line_of(0, 0.0, entry) == slow(0, 0.0, entry)


def test_what_is_no_json_raises_as_json_does() -> None:
    for value in ({"a": math.nan}, {"a": object()}):
        with pytest.raises((ValueError, TypeError)):
            line_of(0, 0.0, Job("j", value, {}, 1, 1, 0))
    assert value_text(None) == "null"


def test_absent_fields_are_left_out() -> None:
    assert "turn" not in line_of(0, 0.0, Grant("w0", 1, 2))
