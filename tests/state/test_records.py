"""Records come back equal, and what is no record is refused with the place of the mistake."""

import json
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pytest

from psserver.records import StateError, from_plain, to_plain
from tests.sentences import Recorder


@dataclass
class Inner:
    name: str
    rate: float | None


class Pair(NamedTuple):
    left: int
    right: float | None = None


@dataclass
class Outer:
    count: int
    flag: bool
    word: Literal["a", "b"]
    pairs: list[tuple[str, int]]
    inner: list[Inner]
    named: dict[str, float]
    line: tuple[int, ...]
    free: dict[str, object]
    pair: Pair = Pair(1)
    raw: bytes = b""


def outer() -> Outer:
    inner = [Inner("x", None), Inner("y", math.inf)]
    return Outer(
        3,
        True,
        "b",
        [("w", 1)],
        inner,
        {"k": -math.inf, "l": 0.1},
        (1, 2),
        {"z": [1, "two"]},
        Pair(2, 0.5),
        b"\x00\xff",
    )


def test_they_come_back_through_text() -> None:
    text = json.dumps(to_plain(outer()), allow_nan=False)
    assert from_plain(Outer, json.loads(text), "it") == outer()
    again = from_plain(Inner, to_plain(Inner("n", math.nan)), "it")
    assert again.rate is not None and math.isnan(again.rate)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"count": "3"}, "it.count: expected a whole number, got '3'"),
        ({"count": True}, "it.count: expected a whole number, got True"),
        ({"count": 3.0}, "it.count: expected a whole number, got 3.0"),
        ({"flag": 1}, "it.flag: expected true or false, got 1"),
        ({"word": "c"}, "it.word: expected one of 'a', 'b', got 'c'"),
        ({"pairs": [["w"]]}, r"it.pairs\[0\]: expected 2 values, got 1"),
        ({"pair": [1]}, "it.pair: expected 2 values, got 1"),
        ({"pair": [1, "x"]}, r"it.pair\[1\]: expected a number, got 'x'"),
        ({"raw": "0g"}, "it.raw: expected bytes as hexadecimal digits, got '0g'"),
        ({"pairs": 5}, "it.pairs: expected a list, got 5"),
        ({"inner": [{"name": "x"}]}, r"it.inner\[0\]: expected the fields name, rate; got no 'rate'"),
        ({"inner": [{"name": "x", "rate": "fast"}]}, r"it.inner\[0\].rate: expected a number, got 'fast'"),
        ({"named": {"k": None}}, "it.named.k: expected a number, got None"),
        ({"more": 1}, "it: expected the fields .*; got unknown 'more'"),
    ],
)
def test_the_place_of_a_mistake(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(StateError, match=f"^{sentence}"):
        from_plain(Outer, {**to_plain(outer()), **change}, "it")


def test_what_is_not_plain_is_not_saved(sentences: Recorder) -> None:
    with sentences.raises(StateError):
        to_plain({"k": {1, 2}})
