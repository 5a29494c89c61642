"""Whose payload is the next of a round: found without a look at every open ticket, and the same as with one."""

import random

import pytest

from psserver.shard.staging import OpenTicket, Staging
from tests.probes import turns_kept
from tests.repetitions import seeds


@pytest.mark.parametrize("seed", list(seeds(20, soak=500)))
def test_the_next_turn_is_the_least_of_all_open_tickets(seed: int) -> None:
    draw = random.Random(seed)
    staging, number = Staging(2, 1), 0
    for _ in range(300):
        if draw.random() < 0.55 or not staging.tickets:
            number += 1
            turn = draw.choice([None, draw.randrange(8)])
            staging.open(OpenTicket(number, "w", turn, False))
        else:
            staging.close(draw.choice(list(staging.tickets)))
        least = min((t.turn for t in staging.tickets.values() if t.turn is not None), default=None)
        oldest = min(staging.tickets, default=0)
        for ticket, opened in staging.tickets.items():
            assert staging.is_next(ticket) == (
                ticket == oldest if opened.turn is None else opened.turn == least
            )


def test_rounds_that_nobody_asks_about_leave_nothing_behind() -> None:
    staging = Staging(2, 4)
    for number in range(1000):
        staging.open(OpenTicket(number, "w", number % 2, False))
        staging.close(number)
    assert turns_kept(staging) <= 32
