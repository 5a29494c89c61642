"""A primary that no client reaches leaves its place, and no other one does."""

import pytest

from psserver.replication import Replica, begin, first_config
from psserver.replication.reach import BETWEEN, COUNTS, UNASKED, Reach

CONFIG = first_config((0, 1))
PRIMARY, FOLLOWER, VOTER = (begin(server, 3, CONFIG) for server in range(3))
# The epoch; another one; and when all have been there for long.
EPOCH, OTHER, LATE = CONFIG.epoch, CONFIG.epoch + 1, 100.0


def heard(unreached: int | None, at: float = LATE) -> Reach:
    """What a server knows whom a client asks then."""
    reach = Reach(0.0)
    reach.asked(at, unreached)
    return reach


def test_a_follower_tells_the_primary_what_clients_say_once_a_second() -> None:
    reach = heard(EPOCH)
    assert reach.tells(FOLLOWER, LATE)
    reach.asked(LATE + COUNTS / 2, EPOCH)
    assert not reach.tells(FOLLOWER, LATE + COUNTS / 2)
    reach.asked(LATE + COUNTS, EPOCH)
    assert reach.tells(FOLLOWER, LATE + COUNTS)
    # No client says so any more.
    assert not reach.tells(FOLLOWER, LATE + 2 * COUNTS)


@pytest.mark.parametrize(
    ("replica", "unreached"),
    [
        (FOLLOWER, None),
        # Of a primary that has been replaced.
        (FOLLOWER, OTHER),
        (PRIMARY, EPOCH),
        (VOTER, EPOCH),
        # It has promised to follow another one.
        (FOLLOWER._replace(disk=FOLLOWER.disk._replace(promised=OTHER)), EPOCH),
    ],
)
def test_nobody_else_tells_it(replica: Replica, unreached: int | None) -> None:
    assert not heard(unreached).tells(replica, LATE)


def passed() -> Reach:
    """What a server knows that leads from LATE on, and was not asked since."""
    reach = Reach(0.0)
    reach.look(FOLLOWER, LATE)
    return reach


def test_a_primary_that_no_client_has_asked_for_a_while_rests_and_not_soon_again() -> None:
    assert not passed().rests(PRIMARY, 1, EPOCH, LATE + UNASKED / 2)
    reach, later = passed(), LATE + UNASKED
    assert reach.rests(PRIMARY, 1, EPOCH, later)
    assert not reach.rests(PRIMARY, 1, EPOCH, later + BETWEEN / 2)
    assert reach.rests(PRIMARY, 1, EPOCH, later + BETWEEN)


def test_a_client_that_asks_keeps_the_primary() -> None:
    reach = passed()
    reach.asked(LATE + UNASKED, None)
    assert not reach.rests(PRIMARY, 1, EPOCH, LATE + UNASKED)


def test_a_server_that_has_just_begun_to_lead_has_missed_nobody() -> None:
    """However long it waited for the others before: nobody asked for one that leads."""
    reach = Reach(0.0)
    reach.look(FOLLOWER, LATE - 2.0)
    # It leads at once, and a server that comes late keeps all waiting.
    reach.look(PRIMARY, LATE, formed=False)
    reach.look(PRIMARY, LATE + 0.1)
    assert not reach.rests(PRIMARY, 1, EPOCH, LATE + UNASKED / 2)
    assert reach.rests(PRIMARY, 1, EPOCH, LATE + UNASKED)


@pytest.mark.parametrize(
    ("replica", "sender", "epoch"),
    [
        (PRIMARY, 1, OTHER),
        # Not a copy in sync.
        (PRIMARY, 2, EPOCH),
        (FOLLOWER, 1, EPOCH),
        (PRIMARY._replace(disk=PRIMARY.disk._replace(promised=OTHER)), 1, EPOCH),
    ],
)
def test_nobody_else_rests(replica: Replica, sender: int, epoch: int) -> None:
    reach = passed()
    assert not reach.rests(replica, sender, epoch, LATE + UNASKED)
    assert reach.rests(PRIMARY, 1, EPOCH, LATE + UNASKED)
