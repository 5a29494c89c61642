"""What is handed to a connection at once: little while a link is slow, so that a ping behind it is answered in time."""

import pytest

from psserver.service.guard.calls import FIRST_PIECE, SendingPace
from pswire.patience import SLOWEST_LINK, silence
from pswire.transport import frames

# Of the model below.
PAYLOAD = 16 * 2**20


def send(pace: SendingPace, rate: float) -> tuple[list[int], float]:
    """A payload over a link of `rate` bytes per second that holds one piece beside the one that is taken. The pieces,
    and the longest that a ping behind all that is under way would have waited for its answer, in seconds."""
    pieces, worst, left, before = [], 0.0, PAYLOAD, 0
    pace.begin()
    while left:
        piece = min(pace.piece, left)
        left -= piece
        pieces.append(piece)
        worst = max(worst, (before + piece) / rate)
        # It is taken once the one before it has passed.
        pace.sent(before / rate)
        before = piece
    return pieces, worst


@pytest.mark.parametrize("worker_timeout", [1.0, 3.0, 10.0, 60.0])
@pytest.mark.parametrize("rate", [500e3, 1e6, 10e6, 1e9])
def test_a_ping_is_answered_in_time(worker_timeout: float, rate: float) -> None:
    pace = SendingPace(worker_timeout)
    for _ in range(3):
        # All versions of a call, not only the first.
        _, worst = send(pace, rate)
        assert worst < silence(worker_timeout)


@pytest.mark.parametrize("worker_timeout", [3.0, 10.0])
def test_the_slowest_link_is_patient_too(worker_timeout: float) -> None:
    _, worst = send(SendingPace(worker_timeout), SLOWEST_LINK)
    assert worst < silence(worker_timeout)


def test_a_fast_link_gets_large_pieces_soon() -> None:
    pieces, _ = send(SendingPace(10.0), 1e9)
    assert pieces[0] == FIRST_PIECE
    assert pieces[7] == frames.CHUNK_BYTES
    assert len(pieces) < PAYLOAD / frames.CHUNK_BYTES + 8


def test_a_link_that_becomes_slow_gets_small_ones() -> None:
    pace = SendingPace(3.0)
    for _ in range(10):
        pace.sent(0.0)
    assert pace.piece == frames.CHUNK_BYTES
    for _ in range(10):
        pace.sent(1.0)
    assert pace.piece == FIRST_PIECE
