"""Texts from the wire are one printable line of a bounded length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pswire.logs.lines import escaped
from tests.promises import promise
from tests.sentences import Recorder


@promise("What others say cannot harm a terminal or a page, or fill a disk.")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("left", "left"),
        ("größer, 更大", "größer, 更大"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\u202egpj.exe\u2028", r"\u202egpj.exe\u2028"),
        ("\U000e0001", r"\U000e0001"),
        ("\\x1b", "\\x1b"),
        ("", ""),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_long_one_is_cut(sentences: Recorder) -> None:
    assert escaped("x" * 20, 8) == "xxxxxxxx ... (12 more characters)"
    sentences.check(escaped("\n" * 20, 8))


@given(st.text(max_size=60), st.integers(1, 40))
def test_any_text_becomes_one_printable_line(text: str, most: int) -> None:
    shown = escaped(text, most)
    assert shown.isprintable() and len(shown) <= most + 30
    if text.isprintable() and len(text) <= most:
        assert shown == text
