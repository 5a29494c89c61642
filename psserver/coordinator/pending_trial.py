"""An update of which nobody knows whether it is finite: what the coordinator keeps while the shards are asked."""

from dataclasses import dataclass, field

from psserver.coordinator.tickets.table import Ticket
from psserver.policies import Decision, Event
from pswire.decisions.entries import Apply


@dataclass(slots=True)
class PendingTrial:
    """`update` is recorded when it is finite; `tickets`: of its parts. `behind`: what the policy decided after it.

    `held`: events of the same input that the policy has not been sent yet.
    """

    number: int
    update: Apply
    tickets: list[Ticket]
    behind: list[Decision]
    held: list[Event] = field(default_factory=list)


@dataclass(slots=True)
class Refusals:
    """Updates that were refused since the last one that was made, and whose contributions were in them, in order."""

    count: int = 0
    workers: dict[str, None] = field(default_factory=dict)

    def add(self, update: Apply) -> None:
        """One more."""
        self.count += 1
        self.workers |= {part.worker: None for part in update.parts}

    def clear(self) -> None:
        """An update was made."""
        self.count = 0
        self.workers.clear()
