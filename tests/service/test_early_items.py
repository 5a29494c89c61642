"""Items that come before a server hears anybody in a new generation: what they consist of does not come again."""

from unittest import mock

from psserver.service.life.replicating import Replicating
from psserver.service.replicas.bodies import Bodies


def test_an_item_is_kept_whose_message_is_not_heard_yet() -> None:
    """The others may have met a moment earlier."""
    role, bodies = object.__new__(Replicating), Bodies()
    role._waits, role._shell = True, mock.Mock(hold=bodies.hold)
    role._receive(2, 1, mock.Mock())
    role._hold((1_000_000, 1), b"an order")
    assert bodies[1_000_000, 1] == b"an order"
