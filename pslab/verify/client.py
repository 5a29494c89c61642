"""A worker as the coordinator sees it: an honest client over a connection that delays, breaks and repeats.

`ClientEngine` knows the protocol, as in a real worker; here is a training loop without gradients around it.
"""

from collections import deque
from dataclasses import dataclass, field

from psworker.engine import ClientEngine, Commit, Event, Request


@dataclass
class Client:
    """`up` and `down` are messages on their way. `batch` is the next one; a restarted process goes on from there."""

    worker: str
    # Where its present phase ends.
    batches: int
    session: int = 0
    incarnation: int = -1
    alive: bool = True
    # Killed, and never to come back.
    gone: bool = False
    connected: bool = False
    up: deque[Request] = field(default_factory=deque)
    down: deque[Event] = field(default_factory=deque)
    batch: int = 0
    # The ticket in hand brings the initial values.
    initialise: bool = False
    # Batches of each phase, where there are several; why it ends the present one for all, if it does.
    phases: list[int] = field(default_factory=list)
    ends: str = ""
    # Why this process can never go on: the job would not have it.
    turned_away: str = ""
    engine: ClientEngine = field(default_factory=ClientEngine)

    # The program

    @property
    def failed(self) -> bool:
        return bool(self.turned_away) or self.engine.refusal is not None

    @property
    def finished(self) -> bool:
        return self.engine.exhausted

    @property
    def can_move(self) -> bool:
        """The training loop has something to do; otherwise it waits for a notice."""
        over = not self.alive or self.failed or self.engine.stop is not None
        return not over and self.engine.work in ("idle", "working")

    @property
    def may_ask_ahead(self) -> bool:
        """It works on a ticket, will want another one, and has none yet."""
        held = self.engine.held
        more = self.batch + 1 < self.batches
        return held is not None and self.engine.after(held) is None and not self.initialise and more

    def ask_ahead(self) -> None:
        assert self.engine.held is not None
        self._send(self.engine.ready_ahead(self.engine.held))

    def move(self, *, abandon: bool, ready: bool) -> None:
        """One step of the training loop. `abandon`: it gives the ticket back; `ready`: it asks with its commit."""
        engine = self.engine
        ticket = engine.held
        if ticket is None:
            self._send(engine.ready() if self.batch < self.batches else engine.done(self.ends))
        elif abandon:
            self._send(engine.abandon(ticket, "the schedule says so"))
        else:
            asks = ready and self.batch + 1 < self.batches and not self.initialise
            commit = Commit(ticket, self.batch, samples=(8, 8, 1, 0)[ticket % 4], loss=0.5, ready=asks)
            self.batch += not self.initialise
            self._send(engine.commit(commit))
        self._go_on()

    def _go_on(self) -> None:
        """A training loop notices at once that its ticket is void, and that another one was granted."""
        engine = self.engine
        if engine.work == "cancelled":
            assert engine.held is not None
            self._send(engine.abandon(engine.held, "cancelled"))
        if engine.work == "granted" and engine.stop is None:
            grant = engine.take_grant()
            assert grant is not None
            self.initialise = grant.initialise

    # The connection

    def _send(self, requests: list[Request]) -> None:
        # Without a connection nothing is lost: `resume` sends what is still owed.
        if self.connected:
            self.up.extend(requests)

    def receive(self) -> None:
        self.engine.receive(self.down.popleft())
        if not self.failed:
            self._go_on()

    def hang_up(self) -> None:
        self.connected = False
        self.up.clear()
        self.down.clear()

    def resume(self) -> None:
        """The connection stands again, as the same incarnation."""
        self._send(self.engine.owed())

    def renew(self) -> None:
        """The connection stands, as a new incarnation: all that was open is void."""
        self.engine.renew("given up")
        self._go_on()
        self.resume()

    def restart(self, batch: int) -> None:
        """Another process takes over where the commits of the former one ended, or this one begins another phase."""
        self.session += 1
        self.hang_up()
        self.alive, self.turned_away, self.ends = True, "", ""
        self.batch, self.engine = batch, ClientEngine()
