"""What can happen to a ticket, and the sentence about all that can not."""

import itertools
from typing import get_args

import pytest

from psserver.coordinator.tickets import (
    TRANSITIONS,
    Ticket,
    TicketError,
    TicketEvent,
    TicketState,
    TicketTable,
)
from pswire import protocol
from tests.sentences import Recorder

FATE = protocol.Disposition(7, "dropped")
# Every pair of a state and an event that is legal, written out once more.
LEGAL = {
    ("open", "install"): "settled",
    ("open", "commit"): "pending",
    ("open", "cancel"): "settled",
    ("open", "abandon"): "settled",
    ("pending", "fold"): "pending",
    ("pending", "apply"): "settled",
    ("pending", "drop"): "settled",
}


def table_with(state: TicketState) -> tuple[TicketTable, Ticket]:
    """Ticket 7 of w0 in that state, by legal moves."""
    table, ticket = TicketTable(next_number=8), Ticket(7, "w0", 0, 0, 0.0, 3)
    table.open(ticket)
    if state != "open":
        table.commit(ticket)
    if state == "settled":
        table.settle(ticket, "drop", FATE)
    return table, ticket


def happens(table: TicketTable, ticket: Ticket, event: TicketEvent) -> None:
    if event == "commit":
        table.commit(ticket)
    elif event == "fold":
        table.allowing(event, ticket.number)
    else:
        table.settle(ticket, event, FATE)


@pytest.mark.parametrize(
    ("state", "event"), list(itertools.product(get_args(TicketState), get_args(TicketEvent)))
)
def test_each_event_in_each_state(state: TicketState, event: TicketEvent, sentences: Recorder) -> None:
    table, ticket = table_with(state)
    after = LEGAL.get((state, event))
    if after is not None:
        happens(table, ticket, event)
        assert ticket.state == after == TRANSITIONS[state][event]
        assert (7 in table.live) == (after != "settled")
        assert table.open_of("w0") == ()
        assert table.recent_of("w0") == ([ticket] if after == "settled" else [])
        return
    before = repr(table)
    with pytest.raises(TicketError) as refused:
        happens(table, ticket, event)
    assert state in str(refused.value)
    sentences.check(refused)
    assert repr(table) == before


def test_the_sentence_names_the_state_that_would_do(sentences: Recorder) -> None:
    table, _ = table_with("pending")
    with pytest.raises(TicketError) as caught:
        table.allowing("cancel", 7)
    sentences.check(caught)
    with pytest.raises(TicketError) as caught:
        table.allowing("apply", 999)
    sentences.check(caught)
