"""Members of the job, their states, and the tallies of their work."""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal

State = Literal["joined", "waiting", "computing", "done"]

# Limit of names in a sentence.
NAMED_LIMIT: Final = 8

# Limit, in tickets, of the batches that a worker may use without a ticket, such as those of a lost connection.
BATCHES_AHEAD = 16

# Limit of remembered processes per name. An older one that comes back counts as new.
REMEMBERED_SESSIONS = 32

# Approximate bytes of a name with its tally, a session without its text, a staleness, a remembered settled ticket.
NAME_BYTES, SESSION_BYTES, STALENESS_BYTES, TICKET_BYTES = 1600, 60, 110, 600
# Limit of remembered settled tickets per worker: enough for any worker that resends its last commits.
REMEMBERED_TICKETS = 16
# Limit of bytes of a name before its first grant; a name has 64 characters, and so has each session.
MAX_NAME_BYTES = NAME_BYTES + 256 + REMEMBERED_SESSIONS * (SESSION_BYTES + 256)


def named(names: Collection[str]) -> str:
    """Return up to `NAMED_LIMIT` names for a sentence, and how many more there are."""
    some = ", ".join(islice(names, NAMED_LIMIT))
    return some if len(names) <= NAMED_LIMIT else f"{some} and {len(names) - NAMED_LIMIT} more"


@dataclass(slots=True)
class Tally:
    """The fates of the contributions of one worker name, over all its incarnations."""

    committed: int = 0
    applied: int = 0
    # The sum of the weights of those that were applied.
    weight: float = 0.0
    dropped: int = 0
    samples: int = 0
    # Staleness -> how many contributions had it, in the order of first occurrence.
    staleness: dict[int, int] = field(default_factory=dict)
    # Its first batch that was never committed.
    next_batch: int = 0
    # Its first batch of the present phase.
    phase_batch: int = 0
    incarnations: int = 0
    # Whether it ever had a session.
    arrived: bool = False
    # Sessions of its latest processes, the newest last: an older one never takes the name back from a newer one.
    sessions: list[str] = field(default_factory=list)
    # When it was last granted a ticket.
    granted_at: float | None = None
    # The number of its grants.
    granted: int = 0
    # Number of its commits when it left before it was done, and the time of its first such departure at that number.
    lost: tuple[int, float] | None = None
    # Batches that are lost for training, because a server or the connection was lost.
    missed: int = 0
    # Bytes that `Roster.weigh` last counted for it.
    weighed: int = field(default=0, init=False, repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        sessions = sum(map(len, self.sessions)) + SESSION_BYTES * len(self.sessions)
        tickets = TICKET_BYTES * min(self.granted, REMEMBERED_TICKETS)
        return NAME_BYTES + sessions + tickets + STALENESS_BYTES * len(self.staleness)

    @property
    def pending(self) -> int:
        return self.committed - self.applied - self.dropped

    def joined(self, session: str) -> None:
        """Note that a process took the name."""
        if session in self.sessions:
            self.sessions.remove(session)
        self.sessions.append(session)
        del self.sessions[:-REMEMBERED_SESSIONS]

    def use(self, batch: int, per_ticket: int) -> None:
        """Note that the member says it has committed that batch of its data. A restart goes on behind it, but behind no
        more batches than its tickets can have used: one commit must not make it skip its data."""
        most = per_ticket * (self.granted + BATCHES_AHEAD)
        self.next_batch = max(self.next_batch, min(batch + 1, most))

    def miss(self, upto: int) -> None:
        """Continue at batch `upto`; uncommitted batches before it are missed."""
        self.missed += max(0, upto - self.next_batch)


@dataclass(slots=True)
class Member:
    """A present worker. One per name; a newer incarnation replaces the older."""

    worker: str
    incarnation: int
    rank: int
    # Random value of the process, which distinguishes a reconnection from a restart.
    session: str
    state: State
    since: float
    # When the connection broke, or when the member joined without one; None while it is up.
    absent_since: float | None
    ever_connected: bool = False
    # Whether the policy has received its Join.
    known_to_policy: bool = False
    # The ticket that it asked for, until it is granted.
    requested: int | None = None
    # Its reason to end the job for all, if it gave one.
    ends: str = ""
    # Whether its process may take part in another phase of the job.
    stays: bool = False
    # Until its first commit: one past the last batch that its session committed before; 0 if it goes back.
    used: int = 0
    # Its framework and devices, as it says, for people.
    computes: str = ""
    # Whether its codec encodes payloads with the residuals of earlier ones; then its last commit, the ticket whose
    # residual that was encoded with, and whether it was dropped since.
    remembers: bool = False
    encoded: tuple[int | None, int | None] = (None, None)
    encoded_dropped: bool = False

    def residual_refusal(self, residual: int | None) -> str | None:
        """Return why the next payload cannot be encoded with the residual of that ticket, or None.

        The residual is that of the last commit. If that one was dropped, it is that of the commit before, once the
        worker knows.
        """
        last, before = self.encoded
        if residual == last or (self.encoded_dropped and residual == before):
            return None
        return f"expected a payload with the residual of ticket {last}, got that of ticket {residual}"

    def enter(self, state: State, now: float) -> None:
        if self.state != state:
            self.state, self.since = state, now


@dataclass(slots=True)
class Roster:
    """Present members by name, and the tallies of all that ever joined.

    `present` changes only through `add` and `remove`, which maintain the index of ranks.
    """

    present: dict[str, Member] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    # Until the start: workers that wait for a ticket or are done.
    prepared: set[str] = field(default_factory=set)
    # Worker -> when it left before it was done. It may come back and finish.
    unfinished: dict[str, float] = field(default_factory=dict)
    # Since when no present member has had a session; None if one has. A Join alone does not count.
    empty_since: float | None = 0.0
    # Approximate bytes of the tallies of all names.
    nbytes: int = field(default=0, init=False, repr=False, compare=False)
    _holders: dict[int, Member] = field(init=False, repr=False, compare=False)
    # Every lower rank is taken.
    _lowest_free: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._holders = {member.rank: member for member in self.present.values()}
        for worker in self.tallies:
            self.weigh(worker)

    def add(self, member: Member) -> None:
        self.present[member.worker] = member
        self._holders[member.rank] = member
        if member.ever_connected:
            self.connected(member)

    def connected(self, member: Member) -> None:
        """Note that the member has or had a session."""
        member.ever_connected = True
        self.tally(member.worker).arrived = True
        self.unfinished.pop(member.worker, None)
        self.empty_since = None

    @property
    def arrived(self) -> int:
        """The number of names that ever had a session."""
        return sum(tally.arrived for tally in self.tallies.values())

    def here(self) -> list[Member]:
        """Return the present members that had a session. The job waits for no others."""
        return [member for member in self.present.values() if member.ever_connected]

    def expected(self) -> list[Member]:
        """Return the members that the start of a phase waits for: those with a session, now or before."""
        return [m for m in self.present.values() if m.ever_connected or self.tallies[m.worker].arrived]

    def remove(self, member: Member, now: float, *, started: bool, resting: bool = False) -> None:
        """Remove a member. Unless it is done, it may come back and finish.

        Once the job has `started`, its time to come back counts from its first departure since its last commit. While
        the job is `resting`, a member that has not asked for work of the next phase leaves nothing unfinished.
        """
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

    def member(self, worker: str, incarnation: int) -> Member | None:
        """Return the present member of that incarnation; None if there is none."""
        member = self.present.get(worker)
        return member if member is not None and member.incarnation == incarnation else None

    def named(self, worker: str, rank: int | None) -> Member | None:
        """Return the member whose name a Join asks for: that of `worker`, or the one of that rank if it is empty."""
        if worker:
            return self.present.get(worker)
        return None if rank is None else self.holder(rank)

    def holder(self, rank: int) -> Member | None:
        return self._holders.get(rank)

    def weigh(self, worker: str) -> None:
        """Update the count of bytes after the name's tally has grown."""
        tally = self.tallies[worker]
        nbytes = len(worker) + tally.nbytes
        self.nbytes, tally.weighed = self.nbytes + nbytes - tally.weighed, nbytes

    def tally(self, worker: str) -> Tally:
        found = self.tallies.get(worker)
        if found is None:
            found = self.tallies[worker] = Tally()
            self.weigh(worker)
        return found
