"""Messages between a worker and the coordinator: in order, at least once."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pslab.simulator.event_queue import EventQueue


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """How messages fare. A lost one is sent again `resend` seconds later, until it arrives."""

    latency: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    resend: float = 0.2

    @property
    def perfect(self) -> bool:
        return not (self.latency or self.loss or self.duplicate)


class Channel:
    """One direction of a worker's session stream: nothing overtakes, some things come twice."""

    __slots__ = ("_agenda", "_faultless", "_habits", "_last", "_rng", "down_until")

    def __init__(self, agenda: EventQueue, habits: LinkFaults, rng: Random) -> None:
        self._agenda = agenda
        self._habits = habits
        self._faultless = habits.perfect
        self._rng = rng
        self._last = 0.0
        # Nothing leaves before; a broken connection moves it into the future.
        self.down_until = 0.0

    def immediate(self) -> bool:
        """A message arrives in the moment in which it is sent."""
        return self._faultless and self._last <= self._agenda.now >= self.down_until

    def send(self, action: Callable[..., None], *arguments: object) -> None:
        """Have ``action(*arguments)`` happen where and when the message arrives."""
        habits, rng = self._habits, self._rng
        arrival = max(self._agenda.now, self.down_until) + habits.latency
        while habits.loss and rng.random() < habits.loss:
            arrival += habits.resend
        self._last = max(self._last, arrival)
        self._agenda.at(self._last, action, *arguments)
        if habits.duplicate and rng.random() < habits.duplicate:
            self._agenda.at(self._last, action, *arguments)
