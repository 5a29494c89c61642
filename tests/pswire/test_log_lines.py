"""The log of a daemon: escaped, bounded, and counted where it repeats itself."""

import io
import logging
from dataclasses import dataclass, field

import pytest

from pswire.logs.lines import LONGEST, MAX_LINES, BoundedHandler
from tests.sentences import Recorder


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


def test_control_characters_are_escaped_and_further_lines_indented(
    written: Written, sentences: Recorder
) -> None:
    written.log.info("%s left: %s", "w0", "\x1b[2J\r\nERROR forged")
    sentences.check(*written.lines)


def test_long_lines_and_long_records_are_cut(written: Written) -> None:
    written.log.info("%s", "x" * 10**6)
    assert len(written.text.getvalue()) < LONGEST + 100
    written.log.info("%s", "\n" * 10**6)
    assert len(written.lines) < 2 * MAX_LINES


def test_a_traceback_stays_readable(written: Written, sentences: Recorder) -> None:
    try:
        raise ValueError("wrong\x07")
    except ValueError:
        written.log.exception("it failed")
    assert written.lines[0] == "ERROR it failed"
    sentences.check(written.lines[1])
    assert written.lines[-1] == r"    ValueError: wrong\x07"


def repeat(written: Written, times: int) -> None:
    for number in range(times):
        written.log.warning("attempt %d", number)


def test_what_repeats_itself_is_counted(written: Written, sentences: Recorder) -> None:
    repeat(written, 10_000)
    written.log.info("another place")
    sentences.check(*written.lines)
    written.now += 11
    written.log.info("later")
    sentences.check(*written.lines[5:])
    repeat(written, 2)
    assert written.lines[7:] == ["WARNING attempt 0", "WARNING attempt 1"]


def test_at_the_end_what_was_counted_is_said(written: Written, sentences: Recorder) -> None:
    repeat(written, 5)
    written.handler.close()
    sentences.check(written.lines[-1])


def test_lines_that_are_rare_are_all_there(written: Written) -> None:
    for _ in range(20):
        repeat(written, 1)
        written.now += 11
    assert written.lines == ["WARNING attempt 0"] * 20
