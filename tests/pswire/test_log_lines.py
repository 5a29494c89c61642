"""The log of a daemon: escaped, bounded, and counted where it repeats itself."""

import io
import logging
from dataclasses import dataclass, field

import pytest

from pswire.logs.lines import LONGEST, MOST_LINES, BoundedHandler


@dataclass
class Written:
    """A logger with a clock that stands still, and what it has written."""

    now: float = 100.0
    text: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.handler = BoundedHandler(self.text, burst=3, period=10.0, clock=lambda: self.now)
        self.handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        self.log = logging.Logger("test", logging.INFO)
        self.log.addHandler(self.handler)

    @property
    def lines(self) -> list[str]:
        return self.text.getvalue().splitlines()


@pytest.fixture
def written() -> Written:
    return Written()


def test_control_characters_are_escaped_and_further_lines_indented(written: Written) -> None:
    written.log.info("%s left: %s", "w0", "\x1b[2J\r\nERROR forged")
    assert written.lines == [r"INFO w0 left: \x1b[2J\r", "    ERROR forged"]


def test_long_lines_and_long_records_are_cut(written: Written) -> None:
    written.log.info("%s", "x" * 10**6)
    assert len(written.text.getvalue()) < LONGEST + 100
    written.log.info("%s", "\n" * 10**6)
    assert len(written.lines) < 2 * MOST_LINES


def test_a_traceback_stays_readable(written: Written) -> None:
    try:
        raise ValueError("wrong\x07")
    except ValueError:
        written.log.exception("it failed")
    assert written.lines[0] == "ERROR it failed"
    assert written.lines[1] == "    Traceback (most recent call last):"
    assert written.lines[-1] == r"    ValueError: wrong\x07"


def repeat(written: Written, times: int) -> None:
    for number in range(times):
        written.log.warning("attempt %d", number)


def test_what_repeats_itself_is_counted(written: Written) -> None:
    repeat(written, 10_000)
    written.log.info("another place")
    assert written.lines == [
        "WARNING attempt 0",
        "WARNING attempt 1",
        "WARNING attempt 2",
        "WARNING (lines like the one before are counted from now on, for 10 s)",
        "INFO another place",
    ]
    written.now += 11
    written.log.info("later")
    assert written.lines[5:] == ["WARNING (9997 more like this one) attempt 9999", "INFO later"]
    repeat(written, 2)
    assert written.lines[7:] == ["WARNING attempt 0", "WARNING attempt 1"]


def test_at_the_end_what_was_counted_is_said(written: Written) -> None:
    repeat(written, 5)
    written.handler.close()
    assert written.lines[-1] == "WARNING (2 more like this one) attempt 4"


def test_lines_that_are_rare_are_all_there(written: Written) -> None:
    for _ in range(20):
        repeat(written, 1)
        written.now += 11
    assert written.lines == ["WARNING attempt 0"] * 20
