"""Which trained variables the first contributions of a worker reach."""

from collections.abc import Sequence
from typing import Any, Final

from numpy.typing import NDArray

from pswire.model.plan import Plan
from psworker.data.payloads import Payload, Pieces

# Contributions after which a variable counts as never reached; the fewest that decide where the data ends earlier.
WATCHED: Final = 10
FEWEST: Final = 3


class Reach:
    """Looks at payloads on their way to the servers. `turns`: contributions in which each variable has its turn once.

    Threads that send to several servers may look at the same time.
    """

    def __init__(self, plan: Plan, turns: int = 1) -> None:
        self._plan, self._turns = plan, turns
        self._left = {number for number, spec in enumerate(plan.variables) if spec.kind == "trainable"}
        self._over = False
        self._sent = 0
        # How many contributions were looked at.
        self.looked = 0

    def watched(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Return payloads that are looked at as they are made."""
        if self._over or not self._left:
            return payloads
        return [self._watched(server, payload) for server, payload in enumerate(payloads)]

    def counts(self, *, ends: bool = False) -> list[str]:
        """Note a contribution that was sent, or that none follows. Return the names of unreached variables: once."""
        self._sent += not ends
        fewest = (FEWEST if ends else WATCHED) * self._turns
        if self._over or self._sent < fewest:
            return []
        self._over, self.looked = True, self._sent
        return self.names

    @property
    def earlier(self) -> bool:
        """Whether variables were named before further contributions were sent."""
        return bool(self._over and self._left and self._sent > self.looked)

    @property
    def names(self) -> list[str]:
        """The variables that were not reached."""
        return [self._plan.variables[number].name for number in self.numbers]

    @property
    def numbers(self) -> list[int]:
        """Their numbers."""
        return sorted(self._left)

    def _watched(self, server: int, payload: Payload) -> Payload:
        if isinstance(payload, Pieces):
            return payload.watched(lambda at, array: self._look(server, at, array))
        if callable(payload):

            def made() -> NDArray[Any]:
                array = payload()
                self._look(server, 0, array)
                return array

            return made
        self._look(server, 0, payload)
        return payload

    def _look(self, server: int, at: int, array: NDArray[Any]) -> None:
        """Look at elements from `at` on of a server's payload."""
        if not self._left or server >= len(self._plan.shards):
            return
        for piece in self._plan.shards[server].slices:
            first, last = max(piece.offset - at, 0), piece.offset + piece.size - at
            if piece.variable in self._left and last > first and array.reshape(-1)[first:last].any():
                self._left.discard(piece.variable)
