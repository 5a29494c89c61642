"""Knobs: one declaration gives the check, the sentence of an error and the description."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pswire.domains import BoundFormula, Domain, named, to_single
from pswire.knobs import (
    Knob,
    KnobError,
    flag,
    integer,
    integers,
    knobs_of,
    number,
    numbers,
    read,
    settings,
    toml,
    word,
)
from tests.sentences import Recorder

WORKERS = named("workers")


@dataclass(frozen=True)
class Made:
    size: int = integer(meaning="of it", at_least=1, at_most=WORKERS, because="there is no more")
    rate: float = number(0.5, "how fast", above=0, below=1)
    least: int = integer(0, "from", at_least=0)
    most: int = integer(9, "to", at_least=named("least"))
    loud: bool = flag(False, "with noise")
    kind: str = word("soft", "of noise", ("soft", "hard"))
    target: float | None = number(None, "where to", at_least=0)


@dataclass(frozen=True)
class Lists:
    places: tuple[int, ...] = integers("where", at_least=0)
    values: tuple[float, ...] = numbers("what", at_least=0)


def refusal(table: dict[str, Any], workers: int = 4, *, single: bool = False) -> str:
    with pytest.raises(KnobError) as caught:
        read(Made, table, "thing t", {"workers": workers}, single=single)
    return str(caught.value)


def test_a_table_becomes_an_object_with_defaults() -> None:
    made = read(Made, {"size": 2, "rate": 0.25}, "thing t", {"workers": 4})
    assert made == Made(2, 0.25)
    assert settings(made) == {
        **{"size": 2, "rate": 0.25, "least": 0, "most": 9, "loud": False, "kind": "soft"},
    }


def test_numbers_become_plain() -> None:
    made = read(Made, {"size": np.int64(2), "target": np.float32(0.5)}, "thing t", {"workers": 4})
    assert (type(made.size), type(made.target)) == (int, float)
    assert type(read(Made, {"size": 2, "target": 1}, "thing t", {"workers": 4}).target) is float


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({}, "thing t: size is missing; give a whole number >= 1 and <= workers"),
        (
            {"size": 5},
            "thing t: size must be a whole number >= 1 and <= workers (4), got 5; there is no more",
        ),
        (
            {"size": 2.0},
            "thing t: size must be a whole number >= 1 and <= workers (4), got 2.0; there is no more",
        ),
        ({"size": 2**70}, "thing t: size must be a whole number >= 1 and <= workers (4), got "),
        ({"size": 1, "rate": 0}, "thing t: rate must be a number > 0 and < 1, got 0"),
        ({"size": 1, "rate": float("nan")}, "thing t: rate must be a number > 0 and < 1, got nan"),
        ({"size": 1, "rate": 10**400}, "thing t: rate must be a number > 0 and < 1, got 1000"),
        (
            {"size": 1, "rate": "x" * 500},
            "thing t: rate must be a number > 0 and < 1, got 'xxxxxxxxxxxx...xxxxxxx",
        ),
        ({"size": 1, "least": 3, "most": 2}, "thing t: most must be a whole number >= least (3), got 2"),
        ({"size": 1, "least": 10}, "thing t: most must be a whole number >= least (10), got 9"),
        ({"size": 1, "loud": 1}, "thing t: loud must be true or false, got 1"),
        ({"size": 1, "kind": "sotf"}, "thing t: kind must be one of soft, hard, got 'sotf'"),
        ({"size": 1, "kind": ["soft"]}, "thing t: kind must be one of soft, hard, got ['soft']"),
        ({"size": 1, "target": None}, "thing t: target must be a number >= 0, got None"),
        ({"sice": 1}, "thing t has no knob 'sice'; did you mean \"size\"?"),
        ({"zzz": 1}, "thing t has no knob 'zzz'; known: size, rate, least, most, loud, kind, target"),
    ],
)
def test_what_is_refused_and_how(table: dict[str, Any], sentence: str) -> None:
    assert refusal(table).startswith(sentence)


def test_bounds_may_hold_in_single_precision() -> None:
    almost = 0.99999999
    assert read(Made, {"size": 1, "rate": almost}, "thing t", {"workers": 1}).rate == almost
    assert refusal({"size": 1, "rate": almost}, single=True).endswith(
        "got 0.99999999 (which is 1 in float32)"
    )
    assert "got 1e-60 (which is 0 in float32)" in refusal({"size": 1, "rate": 1e-60}, single=True)
    assert "got 1e+39" in refusal({"size": 1, "target": 1e39}, single=True)


@given(st.floats(-3.0e38, 3.0e38))
def test_rounding_is_that_of_float32(value: float) -> None:
    assert to_single(value) == float(np.float32(value))


def test_lists(sentences: Recorder) -> None:
    made = read(Lists, {"places": [1, 2], "values": (0.5, 1)}, "schedule s")
    assert made == Lists((1, 2), (0.5, 1.0)) and settings(made) == {"places": [1, 2], "values": [0.5, 1.0]}
    for bad in ([1.5], 1, [True], ["1"], [-1]):
        with pytest.raises(KnobError) as refused:
            read(Lists, {"places": bad, "values": []}, "schedule s")
        sentences.check(refused)


@pytest.mark.parametrize(
    ("formula", "text", "value"),
    [
        (WORKERS, "workers", 7),
        (WORKERS - 1, "workers - 1", 6),
        ((WORKERS - 3) // 2, "(workers - 3) / 2", 2),
        (WORKERS // 2, "workers / 2", 3),
        (WORKERS - named("f") - 2, "workers - f - 2", 3),
        (WORKERS + named("f") + 1, "workers + f + 1", 10),
        (BoundFormula((("f", 2),), 1), "2 f + 1", 5),
    ],
)
def test_formulas_are_data(formula: BoundFormula, text: str, value: int) -> None:
    assert str(formula) == text
    assert formula.value({"workers": 7, "f": 2}) == value


def test_a_knob_describes_itself(sentences: Recorder) -> None:
    size, rate, *_, kind, target = knobs_of(Made)
    sentences.check(str(size))
    sentences.check(str(rate))
    sentences.check(str(kind))
    sentences.check(str(target))
    assert size.to_json() == {
        "type": "integer",
        "at_least": 1,
        "at_most": "workers",
        "range": ">= 1 and <= workers",
        "meaning": "of it",
    }
    assert kind.to_json()["choices"] == ["soft", "hard"] and kind.to_json()["default"] == "soft"
    assert Knob("free", Domain("number"), "of bounds").domain.describe() == "a number"


def test_defaults_are_written_as_toml() -> None:
    assert [toml(value) for value in (True, "a", 1, 0.5, 1e-7, (), ("a", "b"), None)] == [
        *("true", '"a"', "1", "0.5", "1e-07", "[]", '["a", "b"]', "none"),
    ]
