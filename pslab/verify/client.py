"""A worker as the coordinator sees it: an honest client with a line that delays, breaks and repeats.

It follows the same rules as the real session: what was said and not answered
is said again after a reconnection; a new incarnation starts with a clean slate.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from psserver.coordinator.outputs import (
    CancelNotice,
    DispositionNotice,
    GrantNotice,
    Notice,
    RefusalNotice,
    StopNotice,
)

Message = tuple[Any, ...]


@dataclass
class Client:
    """`up` and `down` are messages on their way. `progress` is what a restarted process goes on from."""

    worker: str
    batches: int
    session: int = 0
    incarnation: int = -1
    alive: bool = True
    # Killed, and never to come back.
    gone: bool = False
    connected: bool = False
    up: deque[Message] = field(default_factory=deque)
    down: deque[Notice] = field(default_factory=deque)
    batch: int = 0
    highest: int = 0
    # The ticket that is being computed, and whether it brings the initial values.
    held: int | None = None
    initialise: bool = False
    # Granted ahead, for when `held` is over.
    following: int | None = None
    asked: bool = False
    finished: bool = False
    unanswered: dict[int, Message] = field(default_factory=dict)
    abandoned: dict[int, Message] = field(default_factory=dict)
    stop: StopNotice | None = None
    fatal: str = ""

    # The program

    @property
    def can_move(self) -> bool:
        """The training loop has something to do; otherwise it waits for a notice."""
        return (
            self.alive
            and not (self.fatal or self.stop or self.finished)
            and not (self.asked and self.held is None)
        )

    @property
    def may_ask_ahead(self) -> bool:
        more = self.batch + 1 < self.batches
        return self.held is not None and self.following is None and not self.initialise and more

    def ask_ahead(self) -> None:
        self.say(("ready", self.held))

    def move(self, *, mood: bool, ready: bool) -> None:
        """One step of the training loop. `mood`: it abandons; `ready`: it asks with its commit."""
        if self.held is None:
            if self.batch < self.batches:
                self.asked = True
                self.say(("ready",))
            else:
                self.finished = True
                self.say(("done",))
            return
        ticket, self.held, self.following = self.held, self.following, None
        if mood:
            self.abandoned[ticket] = ("abandon", ticket)
            self.say(self.abandoned[ticket])
            return
        if self.initialise:
            message = ("commit", ticket, 0, False)
        else:
            asks = ready and self.batch + 1 < self.batches and self.held is None
            message = ("commit", ticket, self.batch, asks)
            self.batch += 1
        self.asked = message[3]
        self.unanswered[ticket] = message
        self.say(message)

    def say(self, message: Message) -> None:
        # Without a line nothing is lost: `resume` says what is still owed.
        if self.connected:
            self.up.append(message)

    # Notices

    def hear(self) -> None:
        notice = self.down.popleft()
        match notice:
            case GrantNotice(ticket, _, _, initialise):
                if ticket > self.highest:
                    self.highest, self.asked = ticket, False
                    if self.held is None:
                        self.held, self.initialise = ticket, initialise
                    else:
                        self.following = ticket
            case CancelNotice(ticket):
                self.abandoned.pop(ticket, None)
                if self.held == ticket:
                    # Nothing is said: the coordinator knows. The loop asks again.
                    self.held, self.following = self.following, None
                elif self.following == ticket:
                    self.following = None
            case DispositionNotice(ticket):
                self.unanswered.pop(ticket, None)
                self.abandoned.pop(ticket, None)
            case StopNotice():
                self.stop = notice
            case RefusalNotice(message):
                self.fatal = message

    # The line

    def hang_up(self) -> None:
        self.connected = False
        self.up.clear()
        self.down.clear()

    def resume(self) -> None:
        """The line stands again, as the same incarnation."""
        for message in (*self.abandoned.values(), *self.unanswered.values()):
            self.say(message)
        if self.asked:
            self.say(("ready",))
        if self.finished:
            self.say(("done",))

    def renew(self) -> None:
        """The line stands, as a new incarnation: all that was open is void."""
        self.held = self.following = None
        self.unanswered.clear()
        self.abandoned.clear()
        self.resume()

    def restart(self, progress: int) -> None:
        """Another process takes over where the commits of the former one ended."""
        self.session += 1
        self.hang_up()
        self.alive = True
        self.batch, self.highest, self.held, self.following = progress, 0, None, None
        self.asked = self.finished = False
        self.stop, self.fatal = None, ""
        self.unanswered.clear()
        self.abandoned.clear()
