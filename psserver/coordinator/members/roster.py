"""Who belongs to the job, in which state, and what came of their work."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal

State = Literal["joined", "waiting", "computing", "done"]


# Tickets' worth of batches that a worker may use without a ticket: what a lost connection took from it, say.
BATCHES_AHEAD = 16

# Processes of one name that are remembered: an older one that comes back counts as a new one.
REMEMBERED_SESSIONS = 32

# Bytes, about: a name with its tally, a session beside its text, a staleness, a settled ticket that is remembered.
NAME_BYTES, SESSION_BYTES, STALENESS_BYTES, TICKET_BYTES = 1600, 60, 110, 600
REMEMBERED_TICKETS = 16
# What one name can take before it was granted anything; it has 64 characters, and so has each session.
MOST_NAME_BYTES = NAME_BYTES + 256 + REMEMBERED_SESSIONS * (SESSION_BYTES + 256)


@dataclass(slots=True)
class Tally:
    """What became of the contributions of one worker name, over all its incarnations."""

    committed: int = 0
    applied: int = 0
    dropped: int = 0
    samples: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    # First batch of its data that was never committed.
    next_batch: int = 0
    # Its first one of the present phase.
    phase_batch: int = 0
    incarnations: int = 0
    # A session of its stood, once.
    arrived: bool = False
    # Of its latest processes, the newest last: an older one never takes the name back from a newer one.
    sessions: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED_SESSIONS))
    # When it was last granted a ticket.
    granted_at: float | None = None

    # Tickets that it was granted.
    granted: int = 0
    # Its commits when it left without being done, and since when it has not committed more: restarts do not count.
    lost: tuple[int, float] | None = None

    # Batches that do not count and are not worked on again, because a server or the connection was lost.
    missed: int = 0

    # What was last counted for it; see `Roster.weigh`.
    weighed: int = 0

    @property
    def nbytes(self) -> int:
        """Of memory, about."""
        sessions = sum(map(len, self.sessions)) + SESSION_BYTES * len(self.sessions)
        tickets = TICKET_BYTES * min(self.granted, REMEMBERED_TICKETS)
        return NAME_BYTES + sessions + tickets + STALENESS_BYTES * len(self.staleness)

    @property
    def pending(self) -> int:
        return self.committed - self.applied - self.dropped

    def joined(self, session: str) -> None:
        """A process took the name."""
        if session in self.sessions:
            self.sessions.remove(session)
        self.sessions.append(session)

    def use(self, batch: int, per_ticket: int) -> None:
        """It committed that batch of its data, as it says. A restart goes on behind it, but behind no more
        batches than its tickets can have used: one commit must not make it skip its data."""
        most = per_ticket * (self.granted + BATCHES_AHEAD)
        self.next_batch = max(self.next_batch, min(batch + 1, most))

    def miss(self, upto: int) -> None:
        """It goes on at that batch, and leaves out those before it that are not committed."""
        self.missed += max(0, upto - self.next_batch)


@dataclass(slots=True)
class Member:
    """A present worker. One per name; a newer incarnation replaces the older."""

    worker: str
    incarnation: int
    rank: int
    # Random value of the process; tells a reconnection from a restart.
    session: str
    state: State
    since: float
    # When the connection broke (or was awaited first); None while it stands.
    absent_since: float | None
    ever_connected: bool = False
    # The policy was sent its Join.
    known_to_policy: bool = False
    # The ticket id it asked for with its last Ready, while not granted.
    requested: int | None = None
    # Why the job is to end for all, if it has said so.
    ends: str = ""
    # Its process may take part in another phase of the job.
    stays: bool = False
    # Until its first commit: behind the last batch that its session committed before; 0 where it goes back.
    used: int = 0

    def enter(self, state: State, now: float) -> None:
        if self.state != state:
            self.state, self.since = state, now


class Roster:
    """Present members by name, and the tallies of everyone who ever was here.

    `present` changes through `add` and `remove` only: ranks are indexed beside it.
    """

    def __init__(self, now: float) -> None:
        self.present: dict[str, Member] = {}
        # Until the start: who asked for a ticket that it was not granted, or is done.
        self.prepared: set[str] = set()
        self._holders: dict[int, Member] = {}
        # Every rank below it is taken.
        self._lowest_free = 0
        self.tallies: dict[str, Tally] = {}
        # Bytes, about, of all that is kept for every name that ever was here.
        self.nbytes = 0
        # Left without being done: they may come back and finish.
        self.unfinished: dict[str, float] = {}
        # None while somebody is present whose session stood: a Join alone holds up no end.
        self.empty_since: float | None = now

    def add(self, member: Member) -> None:
        self.present[member.worker] = member
        self._holders[member.rank] = member
        if member.ever_connected:
            self.connected(member)

    def connected(self, member: Member) -> None:
        """Its session stands, or stood."""
        member.ever_connected = True
        self.tally(member.worker).arrived = True
        self.unfinished.pop(member.worker, None)
        self.empty_since = None

    @property
    def arrived(self) -> int:
        """How many names had a session, ever."""
        return sum(tally.arrived for tally in self.tallies.values())

    def here(self) -> list[Member]:
        """Present members that had a session. What only joined is waited for by nobody."""
        return [member for member in self.present.values() if member.ever_connected]

    def expected(self) -> list[Member]:
        """Before a phase begins: who is here, and who of those that were is about to come again."""
        return [m for m in self.present.values() if m.ever_connected or self.tallies[m.worker].arrived]

    def remove(self, member: Member, now: float, *, started: bool, resting: bool = False) -> None:
        """It is gone. Unless it is done, it may come back and finish; once the job has `started`, in the time that
        began with its first death since it committed. While the job is `resting`, who has not asked for work of the
        next phase leaves nothing undone."""
        del self.present[member.worker]
        unfinished = member.worker in self.prepared or not resting
        if member.state != "done" and member.ever_connected and unfinished:
            tally = self.tally(member.worker)
            if not started or tally.lost is None or tally.lost[0] < tally.committed:
                tally.lost = (tally.committed, now)
            self.unfinished[member.worker] = tally.lost[1]
        if self.empty_since is None and not self.here():
            self.empty_since = now
        del self._holders[member.rank]
        self.prepared.discard(member.worker)
        self._lowest_free = min(self._lowest_free, member.rank)

    def by_rank(self) -> list[Member]:
        return sorted(self.present.values(), key=lambda m: m.rank)

    def free_rank(self) -> int:
        while self._lowest_free in self._holders:
            self._lowest_free += 1
        return self._lowest_free

    def holder(self, rank: int) -> Member | None:
        return self._holders.get(rank)

    def weigh(self, worker: str) -> None:
        """What is kept for the name has grown: count it anew."""
        tally = self.tallies[worker]
        nbytes = len(worker) + tally.nbytes
        self.nbytes, tally.weighed = self.nbytes + nbytes - tally.weighed, nbytes

    def tally(self, worker: str) -> Tally:
        found = self.tallies.get(worker)
        if found is None:
            found = self.tallies[worker] = Tally()
            self.weigh(worker)
        return found
