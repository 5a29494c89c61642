"""One input to a replica: which rule takes it."""

from collections.abc import Callable
from typing import Any, Final

from psserver.replication import copying, voting
from psserver.replication import messages as m
from psserver.replication.state import InputTurn, Replica

_MESSAGES: Final[dict[type[m.Message], Callable[[InputTurn, int, Any], None]]] = {
    m.Prepare: voting.prepare,
    m.Promise: voting.promise,
    m.Sync: voting.sync,
    m.Synced: voting.synced,
    m.Propose: voting.propose,
    m.Accepted: voting.accepted,
    m.Refuse: voting.refuse,
    m.Append: copying.append,
    m.Held: copying.held,
    m.Expel: copying.expel,
}
_ORDERS: Final[dict[type[m.Input], Callable[[InputTurn, Any], None]]] = {
    m.Offer: copying.offer,
    m.Executed: copying.executed,
    m.Stand: voting.stand,
    m.Installed: copying.installed,
    m.Broke: copying.broke,
    m.Differs: copying.differs,
}


def take(state: Replica, given: m.Input) -> tuple[Replica, tuple[m.Output, ...]]:
    """Return the state after one input, and the outputs, which the shell carries out in order.

    Raises ReplicationError for an operator's vote that would not be safe, and where another server broke the protocol.
    """
    turn = InputTurn(state)
    if isinstance(given, m.Receive):
        _MESSAGES[type(given.message)](turn, given.sender, given.message)
    elif isinstance(given, m.Beat):
        if state.leads:
            copying.beat(turn)
        else:
            copying.alive(turn)
        if state.standing is not None:
            voting.repeat(turn)
    else:
        _ORDERS[type(given)](turn, given)
    return turn.state, tuple(turn.outputs)
