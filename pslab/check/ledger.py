"""What a decision log says so far: the model's version, every ticket, every member.

The ledger believes the log and never complains; checks compare each new entry with it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pslab.runs.log import Line
from pswire.decisions import entries as e

OPEN, COMMITTED, INSTALLED = "open", "committed", "installed"
APPLIED, DROPPED, CANCELLED, ABANDONED = "applied", "dropped", "cancelled", "abandoned"


@dataclass(slots=True)
class Ticket:
    """One unit of work. `base` is None for the ticket that brings the initial values."""

    number: int
    worker: str
    base: int | None
    turn: int | None
    state: str = OPEN
    samples: int = 0
    folded: bool = False


@dataclass(slots=True)
class Member:
    """One incarnation of a worker. Present until it leaves; live until it leaves or is done."""

    worker: str
    incarnation: int
    rank: int
    # Had a ticket of its own to work on; before that the policy need not know it.
    granted: bool = False
    done: bool = False
    gone: bool = False
    lost: bool = False

    @property
    def live(self) -> bool:
        return not (self.done or self.gone)


@dataclass
class Ledger:
    """State after the entries recorded so far. `version` is None until the first values are installed.

    `job`: as the newest resume names it. `saved`: the number of the last entry, where that is a checkpoint.
    """

    job: e.Job | None = None
    version: int | None = None
    entries: int = 0
    tickets: dict[int, Ticket] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    stop: e.Stop | None = None
    saved: int | None = None
    contributions: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    staleness: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    samples: int = 0
    # Tickets granted or committed and not yet over; a subset of `tickets` kept to stay fast.
    _held: dict[int, Ticket] = field(default_factory=dict)

    def held(self) -> Iterator[Ticket]:
        """Tickets that were granted to read a version and have no fate yet, in the order of their grants."""
        return (ticket for ticket in self._held.values() if ticket.base is not None)

    def playing(self) -> Iterator[Member]:
        """Members that surely take part: granted before, not done, not gone."""
        return (member for member in self.members.values() if member.live and member.granted)

    def pending(self) -> int:
        """Contributions that exist and have no fate yet."""
        return sum(ticket.state == COMMITTED for ticket in self._held.values())

    def age(self, ticket: Ticket) -> int:
        """Versions made since the ticket's base; 0 for an initial-values ticket."""
        return 0 if ticket.base is None or self.version is None else self.version - ticket.base

    def record(self, entry: Line) -> None:
        """Take one entry as true."""
        self.entries += 1
        self.saved = entry.i if isinstance(entry.fact, e.Checkpoint) else None
        match entry.fact:
            case e.Job() as job:
                self.job = job
            case e.Join(worker, incarnation, rank):
                self.members[worker] = Member(worker, incarnation, rank)
            case e.Initialise(worker, number):
                self._open(Ticket(number, worker, None, None))
            case e.Install(_, number, version):
                self.version = version
                self._close(number, INSTALLED)
            case e.Grant(worker, number, version, turn):
                self._open(Ticket(number, worker, version, turn))
                if worker in self.members:
                    self.members[worker].granted = True
            case e.Stop() as stop:
                self.stop = stop
            case e.Commit() | e.Fold() | e.Apply() | e.Drop() | e.Cancel() | e.Abandon() as fate:
                self._record_fate(fate)
            case e.Lost(worker) | e.Back(worker) | e.Leave(worker) | e.Done(worker) | e.Resume(worker):
                self._record_presence(worker, entry.fact)
            case e.Restore(job, _, servers):
                self.stop = None
                if self.job is not None:
                    self.job = replace(self.job, job=job, servers=servers)
            case e.Start() | e.Work() | e.Rate() | e.Checkpoint() | e.Refuse():
                # What a refusal does are the drops behind it.
                pass

    def _record_fate(self, fact: e.Commit | e.Fold | e.Apply | e.Drop | e.Cancel | e.Abandon) -> None:
        match fact:
            case e.Commit(worker, number, _, samples):
                self.contributions[worker][COMMITTED] += 1
                self.samples += samples
                if number in self._held:
                    self._held[number].state = COMMITTED
                    self._held[number].samples = samples
            case e.Fold(number):
                if number in self._held:
                    self._held[number].folded = True
            case e.Apply(version, _, _, parts):
                self.version = version
                for part in parts:
                    self.contributions[part.worker][APPLIED] += 1
                    self.staleness[part.worker][part.staleness] += 1
                    self._close(part.ticket, APPLIED)
            case e.Drop(worker, number):
                self.contributions[worker][DROPPED] += 1
                self._close(number, DROPPED)
            case e.Cancel(_, number):
                self._close(number, CANCELLED)
            case e.Abandon(_, number):
                self._close(number, ABANDONED)

    def _record_presence(self, worker: str, fact: e.Entry) -> None:
        member = self.members.get(worker)
        if member is None:
            return
        match fact:
            case e.Lost():
                member.lost = True
            case e.Back():
                member.lost = False
            case e.Leave():
                member.gone = True
            case e.Done():
                member.done = True
            case e.Resume():
                # To the policy it is a newcomer.
                member.done = member.granted = False

    def _open(self, ticket: Ticket) -> None:
        self.tickets[ticket.number] = self._held[ticket.number] = ticket

    def _close(self, number: int, state: str) -> None:
        if number in self._held:
            self._held.pop(number).state = state
