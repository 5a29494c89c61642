"""A worker's process: the engine of the session protocol, a loop of numbered batches, and what is under way."""

from collections import deque
from dataclasses import dataclass, field

from psworker.engine import ClientEngine, Commit, Event, Request

# The job's name in its generation, and the incarnation of the worker in it.
Member = tuple[str, int]


@dataclass
class Exchange:
    """A commit on its way to server 0. `waits`: it was taken, and there is no answer yet."""

    member: Member
    commit: Commit
    arrived: bool = False
    waits: bool = False
    answer: list[Event] = field(default_factory=list)


@dataclass
class Worker:
    """`psworker.loop` goes through numbered batches as this does.

    `up`, `down`: messages of the stream that stands. `exchange`: the loop waits for it. `strays`: exchanges that it
    waits for no longer, which may arrive all the same. `said`: messages that may arrive once more.
    """

    name: str
    batches: int
    alive: bool = True
    reachable: bool = True
    connected: bool = False
    # Of a stream that broke, which server 0 does not know.
    unnoticed: Member | None = None
    session: int = 0
    member: Member | None = None
    engine: ClientEngine = field(default_factory=ClientEngine)
    next_batch: int = 0
    batch: int = 0
    # Of the ticket in hand: whether it brings the initial values, and its grant's place in the log.
    initialise: bool = False
    index: int = 0
    # A commit that is sent until it is answered, behind its payload or (False) behind receipts; and this try.
    commit: Commit | None = None
    fused: bool = False
    exchange: Exchange | None = None
    up: deque[Request] = field(default_factory=deque)
    down: deque[Event] = field(default_factory=deque)
    strays: deque[tuple[Member, Request]] = field(default_factory=deque)
    said: deque[tuple[Member, Request]] = field(default_factory=lambda: deque(maxlen=4))

    @property
    def rank(self) -> int:
        return int(self.name[1:])

    @property
    def process(self) -> str:
        """What it proves itself by."""
        return f"{self.name}-{self.session}"

    def send(self, requests: list[Request]) -> None:
        """Without a stream nothing is lost: what is owed is sent when there is one."""
        if self.connected:
            self.up.extend(requests)

    def hang_up(self) -> None:
        """The stream is broken, as the worker sees it."""
        self.connected = False
        self.up.clear()
        self.down.clear()

    def break_exchange(self) -> None:
        """Its connection broke, or it lasted too long: the loop sends the commit again."""
        if self.exchange is not None:
            found, self.exchange = self.exchange, None
            if not found.arrived:
                self.strays.append((found.member, found.commit))

    def restart(self) -> None:
        """Another process of this name. What the former one has sent may still arrive."""
        self.break_exchange()
        self.hang_up()
        self.alive, self.session, self.engine = True, self.session + 1, ClientEngine()
        self.member = self.commit = None

    def joined(self, member: Member, next_batch: int) -> None:
        """As `psworker.control.stream` takes the answer to a Join."""
        before, self.member, self.next_batch = self.member, member, next_batch
        self.connected, self.unnoticed = True, None
        if before is None:
            self.batch = next_batch
        elif before != member:
            undone = self.engine.undone(next_batch) > 0
            self.engine.renew("another membership", next_batch, again=undone or before[0] != member[0])
        self.up.extend(self.engine.owed())
