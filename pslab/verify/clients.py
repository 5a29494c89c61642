"""Workers of a schedule: honest clients over connections that delay, break and repeat; and hostile messages.

An honest client is a training loop without gradients around a real worker's `ClientEngine`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pslab.verify.harness import memory_of
from pslab.verify.invariants import Guard, expect
from psserver.coordinator import Coordinator, Joined, Send, inputs
from pswire import protocol
from psworker.engine import ClientEngine, Commit, Disposition, Event, Refusal, Request


@dataclass
class Client:
    """One worker. `up`, `down`: messages on their way. `batch`: the next one, from which a restarted process goes on.

    `batches`: the end of its current phase. `gone`: it was killed for good. `initialise`: the ticket in hand is for the
    initial values. `phases`: the batches of each phase, if there are several; `ends`: why it ends the current one for
    all workers, or empty. `turned_away`: why the job refuses this process, or empty.
    """

    worker: str
    batches: int
    session: int = 0
    incarnation: int = -1
    alive: bool = True
    gone: bool = False
    connected: bool = False
    up: deque[Request] = field(default_factory=deque)
    down: deque[Event] = field(default_factory=deque)
    batch: int = 0
    initialise: bool = False
    phases: list[int] = field(default_factory=list)
    ends: str = ""
    turned_away: str = ""
    engine: ClientEngine = field(default_factory=ClientEngine)

    # The training loop

    @property
    def failed(self) -> bool:
        return bool(self.turned_away) or self.engine.refusal is not None

    @property
    def finished(self) -> bool:
        return self.engine.exhausted

    @property
    def can_move(self) -> bool:
        """True if the training loop has something to do; otherwise it waits for a notice."""
        over = not self.alive or self.failed or self.engine.stop is not None
        return not over and self.engine.work in ("idle", "working")

    @property
    def may_ask_ahead(self) -> bool:
        """True if it works on a ticket, needs another one after it, and has none yet."""
        held = self.engine.held
        more = self.batch + 1 < self.batches
        return held is not None and self.engine.after(held) is None and not self.initialise and more

    def ask_ahead(self) -> None:
        assert self.engine.held is not None
        self._send(self.engine.ready_ahead(self.engine.held))

    def move(self, *, abandon: bool, ready: bool) -> None:
        """Take one step of the training loop. `abandon`: give the ticket back; `ready`: ask with the commit."""
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
            self._send([engine.commit(commit)])
        self._go_on()

    def _go_on(self) -> None:
        """Give back a cancelled ticket, and take the next grant if there is one."""
        engine = self.engine
        if engine.cancelled:
            assert engine.held is not None
            self._send(engine.abandon(engine.held, "cancelled"))
        if engine.work == "waiting" and engine.grants and engine.stop is None:
            grant = engine.take_grant()
            assert grant is not None
            self.initialise = grant.initialise

    # The connection

    def _send(self, requests: Sequence[Request]) -> None:
        # Without a connection nothing is lost: `resume` sends it again.
        if self.connected:
            self.up.extend(requests)

    def receive(self) -> None:
        event, commit = self.down.popleft(), self.engine.committing
        if commit is not None and isinstance(event, Disposition | Refusal) and event.ticket == commit.ticket:
            self.engine.answered_commit(commit.ticket, [event])
        else:
            self.engine.receive(event)
        if not self.failed:
            self._go_on()

    def hang_up(self) -> None:
        self.connected = False
        self.up.clear()
        self.down.clear()

    def resume(self) -> None:
        """Go on over a new connection, as the same incarnation. An unanswered commit is sent again."""
        commit = self.engine.committing
        self._send([*([] if commit is None else [commit]), *self.engine.owed()])

    def renew(self) -> None:
        """Go on over a new connection, as a new incarnation: open tickets are void."""
        self.engine.renew("given up")
        self._go_on()
        self.resume()

    def restart(self, batch: int) -> None:
        """Start another process behind the commits of the former one, or begin another phase."""
        self.session += 1
        self.hang_up()
        self.alive, self.turned_away, self.ends = True, "", ""
        self.batch, self.engine = batch, ClientEngine()


NOBODY = "w9"


@dataclass(frozen=True)
class Adversary:
    """A sender of messages that must change nothing: repeated ones, old ones, and false claims.

    Each method sends one at `now`; `pick(n)` chooses from 0 .. n - 1. Raises InvariantViolation.
    """

    coordinator: Coordinator
    pick: Callable[[int], int]
    now: float
    guard: Guard

    def join_again(self, worker: str) -> None:
        """Join a second time as the same process."""
        coordinator = self.coordinator
        member = coordinator.state.roster.present.get(worker)
        if member is not None and coordinator.state.stopped is None:
            before = coordinator.state.entries
            asked = inputs.JoinAsked(worker, member.session, member.rank)
            outputs = coordinator.take(asked, self.now)
            same = Joined(worker, member.incarnation, member.rank)
            expect(
                outputs == [same] and coordinator.state.entries == before,
                f"{worker} joined once more, and something changed: {outputs}",
            )

    def repeat(self, worker: str) -> None:
        """Send an old message again: it is answered, and changes nothing."""
        coordinator = self.coordinator
        settled = coordinator.state.tickets.recent_of(worker)
        member = coordinator.state.roster.present.get(worker)
        if not settled or member is None:
            return
        ticket = settled[self.pick(len(settled))]
        before = coordinator.state.entries
        who, now = (worker, member.incarnation), self.now
        if self.pick(2):
            outputs = coordinator.take(
                inputs.Requested(*who, protocol.Commit(ticket.number, samples=5, loss=9.0)), now
            )
            sent = [o.notice for o in outputs if isinstance(o, Send)]
            expect(sent == [ticket.fate], f"{worker} commits {ticket.number} again and receives {sent}")
        else:
            outputs = coordinator.take(inputs.Requested(*who, protocol.Abandon(ticket.number, "late")), now)
            expect(outputs == [], f"{worker} abandons {ticket.number}, which is settled: {outputs}")
        expect(coordinator.state.entries == before, "a settled ticket is decided again")
        self.guard.compare(coordinator)

    def lie(self, worker: str, incarnation: int) -> None:
        """Send a false claim: it is refused with a sentence, and changes nothing.

        `incarnation`: of the worker's process, if it is not a member.
        """
        coordinator, pick, now = self.coordinator, self.pick, self.now
        member = coordinator.state.roster.present.get(worker)
        incarnation = member.incarnation if member else incarnation
        foreign = [t.number for t in coordinator.state.tickets.live.values() if t.worker != worker]
        ticket = foreign[pick(len(foreign))] if foreign and pick(2) else 10**6 + pick(3)
        worker = (worker, NOBODY)[pick(2)] if member else worker
        if pick(2) or member is None:
            incarnation += 1 + pick(2)
        before = memory_of(coordinator)
        request: protocol.Request
        match pick(4):
            case 0 if worker == NOBODY or member is None or incarnation != member.incarnation:
                request = protocol.Ready()
            case 1 if worker == NOBODY or member is None or incarnation != member.incarnation:
                request = protocol.Done()
            case 2:
                request = protocol.Abandon(ticket, "lie")
            case _:
                request = protocol.Commit(ticket, samples=10**6)
        outputs = coordinator.take(inputs.Requested(worker, incarnation, request), now)
        refusals = [
            o.notice for o in outputs if isinstance(o, Send) and isinstance(o.notice, protocol.Refusal)
        ]
        expect(
            len(outputs) == len(refusals) == 1, f"an unknown session is not refused exactly once: {outputs}"
        )
        expect(bool(refusals[0].message), "a refusal says nothing")
        expect(memory_of(coordinator) == before, "a message of an unknown session changed something")
