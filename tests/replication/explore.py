"""Every state that one log's servers can reach: messages late, lost, doubled and in any order, servers that crash.

Breadth first over canonical states. A state has each server, the set of messages ever sent, what became stable, and how
many events are left. A message stays in the set when it is delivered, so loss, delay and repetition need no events of
their own. A message that changes its receiver no more and never will again, because the receiver is past its epoch or
its phase, is left out; that it changes nothing now is tried, not assumed. Of a state met only the hash is kept. What
one server does with one message is computed once.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from psserver.replication import Config, ReplicationError, SyncMember, first_config
from psserver.replication.losing import lost
from psserver.replication.messages import (
    Accepted,
    Append,
    Beat,
    Held,
    Item,
    Message,
    Offer,
    Prepare,
    Promise,
    Propose,
    Receive,
    Refuse,
    Stand,
    Sync,
    Synced,
)
from tests.replication.model import Copy, Done, Local, Violation, crashed, started, step, unique_epochs


@dataclass(frozen=True, slots=True)
class Bounds:
    """How often each event may happen in one history. `forgets`: whether logs forget what all have executed."""

    tickets: int = 2
    takeovers: int = 2
    crashes: int = 1
    servers: int = 3
    forgets: bool = True


class Facts(NamedTuple):
    """What has become stable, each item with the epoch in which it did, and what was activated."""

    stable: tuple[tuple[Item, int], ...] = ()
    activated: frozenset[Config] = frozenset()


class State(NamedTuple):
    """`locals`, `facts`: numbers in tables. `sent`: a set of messages, as bits."""

    locals: tuple[int, ...]
    sent: int
    facts: int
    tickets: int
    takeovers: int
    crashes: int

    def key(self) -> int:
        """A hash. Python's own of a long integer maps many sets of messages to one number."""
        sent = self.sent.to_bytes(self.sent.bit_length() // 8 + 1, "little")
        return hash((self.locals, sent, *self[2:]))


class Table(dict):
    """Things and their numbers."""

    def __init__(self):
        super().__init__()
        self.things = []

    def number(self, thing) -> int:
        found = self.get(thing)
        if found is None:
            found = self[thing] = len(self.things)
            self.things.append(thing)
        return found


class Explorer:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.locals, self.facts, self.messages = Table(), Table(), Table()
        self.to: list[int] = [0] * bounds.servers
        self._done: dict[tuple[int, object], tuple] = {}
        self._dead: dict[tuple[int, int], bool] = {}
        self._heeded: dict[int, int] = {}
        self._judged: dict = {}
        self._lost: dict[tuple[int, ...], bool] = {}
        # Server state -> messages that change nothing there, as bits.
        self.inert: dict[int, int] = {}
        # Hashes of the states met.
        self.seen: set[int] = set()
        self.depth = 0
        self.last = ""
        self.came: dict[State, tuple[State, str]] | None = None

    def story(self, state: State | None) -> str:
        """What led to a state and the event that broke the promise."""
        if self.came is None or state is None:
            return ""
        told = [self.last]
        while state in self.came:
            state, event = self.came[state]
            told.append(event)
        return "\n".join(reversed(told))

    def first(self) -> State:
        config = first_config((0, 1))
        each = tuple(
            self.locals.number(started(server, self.bounds.servers, config))
            for server in range(self.bounds.servers)
        )
        left = self.bounds
        return State(each, 0, self.facts.number(Facts()), 0, left.takeovers, left.crashes)

    def run(
        self,
        most: int | None = None,
        seconds: float | None = None,
        tell: Callable[[str], object] | None = None,
    ) -> bool:
        """Explore; raise Violation, with its story if `came` is a dictionary. Returns whether that was everything."""
        began = time.monotonic()
        level = [self.first()]
        self.seen = set(map(State.key, level))
        while level:
            following = []
            for state in level:
                try:
                    for after in self.successors(state):
                        if (key := after.key()) not in self.seen:
                            self.seen.add(key)
                            following.append(after)
                            if self.came is not None:
                                self.came[after] = state, self.last
                except Violation as error:
                    raise Violation(f"{error}\n{self.story(state)}") from None
                if most is not None and len(self.seen) >= most:
                    return False
            if seconds is not None and time.monotonic() - began > seconds:
                return False
            level = following
            self.depth += 1
            if tell is not None:
                tell(f"depth {self.depth}: {len(self.seen)} states, {time.monotonic() - began:.0f} s")
        return True

    # Events

    def successors(self, state: State) -> Iterator[State]:
        for server, number in enumerate(state.locals):
            mask = state.sent & self.to[server] & ~self.inert.get(number, 0)
            while mask:
                bit = mask & -mask
                mask ^= bit
                yield from self.after(state, server, bit.bit_length() - 1, state)
            yield from self.own(state, server, number)

    def own(self, state: State, server: int, number: int) -> Iterator[State]:
        replica, _, done = self.locals.things[number]
        if replica.leads and not replica.sealed:
            for ticket in range(min(state.tickets + 1, self.bounds.tickets)):
                if ticket in done:
                    # The shell answers what it has executed.
                    continue
                offered = state._replace(tickets=max(state.tickets, ticket + 1))
                yield from self.after(state, server, Offer(ticket), offered)
        if replica.leads and self.alone(state, server):
            yield from self.after(state, server, Beat(), state)
        if state.takeovers and replica.holds:
            less = state._replace(takeovers=state.takeovers - 1)
            for order in self.stands(state, server):
                yield from self.after(state, server, order, less)
        if state.crashes:
            self.last = f"  {server} crashes and starts again"
            yield self.crashed(state, server, self.locals.number(crashed(self.locals.things[number])))

    def alone(self, state: State, server: int) -> bool:
        """Whether the partner is no member of what this server leads: only then a heartbeat is news."""
        partner = self.locals.things[state.locals[1 - server]].replica.member
        return partner not in self.locals.things[state.locals[server]].replica.disk.config.members

    def stands(self, state: State, server: int) -> list[Stand]:
        """Orders to stand: with and without the partner; at the lowest epoch, and above all."""
        top = 0
        for number in state.locals:
            replica = self.locals.things[number].replica
            top = max(top, replica.disk.promised, replica.standing.epoch if replica.standing else 0)
        return [Stand(include, above) for include in ((), (1 - server,)) for above in {0, top}]

    def after(self, state: State, server: int, what: object, base: State) -> Iterator[State]:
        """The states that an input leads to. `what`: an input, or the number of a message."""
        number = state.locals[server]
        if self.came is not None:
            self.last = f"  {server}: {self.messages.things[what] if isinstance(what, int) else what}"
        local, mask, activated, torn, changed = self.outcome(number, what)
        if isinstance(local, Violation):
            raise local
        if not changed and base is state and not mask & ~state.sent:
            return
        sent, locals_, facts = state.sent, state.locals, base.facts
        if changed:
            locals_ = (*locals_[:server], local, *locals_[server + 1 :])
            self.stays_lost(state.locals, locals_)
            facts = self.judge(locals_, facts, server, activated)
        if changed or mask:
            sent = self.canonical(state, server, locals_, mask)
        yield State(locals_, sent, facts, base.tickets, base.takeovers, base.crashes)
        if state.crashes:
            for broken, bits in torn:
                self.last += " and loses power in the middle"
                yield self.crashed(base, server, broken, bits)

    def crashed(self, state: State, server: int, broken: int, bits: int = 0) -> State:
        locals_ = (*state.locals[:server], broken, *state.locals[server + 1 :])
        self.stays_lost(state.locals, locals_)
        sent = self.canonical(state, server, locals_, bits)
        return State(locals_, sent, state.facts, state.tickets, state.takeovers, state.crashes - 1)

    def outcome(self, number: int, what: object) -> tuple:
        """What an input, or a message by its number, does to a server."""
        found = self._done.get((number, what))
        if found is None:
            found = self._done[number, what] = self.perform(number, what)
            if isinstance(what, int) and not found[1] and not found[4]:
                self.inert[number] = self.inert.get(number, 0) | 1 << what
        return found

    def perform(self, number: int, what: object) -> tuple:
        local: Local = self.locals.things[number]
        given = what
        if isinstance(what, int):
            sender, _, message = self.messages.things[what]
            given = message if isinstance(message, Copy) else Receive(sender, message)
        try:
            done: Done = step(local, given, forgets=self.bounds.forgets)
        except ReplicationError as error:
            return Violation(str(error)), 0, None, (), True
        bits = [self.bit(local.replica.server, to, message) for to, message in done.sent]
        torn = tuple((self.locals.number(each), union(bits[:count])) for each, count in done.torn)
        after = self.locals.number(done.local)
        return after, union(bits), done.activated, torn, after != number

    def bit(self, sender: int, to: int, message: Message | Copy) -> int:
        if isinstance(message, Refuse):
            # Heard or not, it only delays attempts, whose epochs are drawn here.
            return 0
        number = self.messages.number((sender, to, message))
        self.to[to] |= 1 << number
        return 1 << number

    # Canonical form

    def canonical(self, state: State, server: int, locals_: tuple[int, ...], bits: int) -> int:
        """The messages of a state after `server` has changed and sent `bits`, without those never heeded again."""
        fresh = bits & ~state.sent
        sent = state.sent | fresh
        for other, number in enumerate(locals_):
            mask = (sent if other == server else fresh) & self.to[other]
            if mask:
                sent &= ~self.dead(number, mask)
        return sent

    def dead(self, number: int, mask: int) -> int:
        known, dead = self._heeded.get(number, (0, 0))
        new = mask & ~known
        if new:
            local = self.locals.things[number]
            while new:
                bit = new & -new
                new ^= bit
                name = bit.bit_length() - 1
                sender, _, message = self.messages.things[name]
                if not heeded(local, sender, message) and not self.outcome(number, name)[4]:
                    dead |= bit
                known |= bit
            self._heeded[number] = known, dead
        return dead & mask

    # Promises

    def judge(self, locals_: tuple[int, ...], facts: int, server: int, activated: Config | None) -> int:
        """Hold a new state to the promises; return what has become stable."""
        key = locals_, facts, server, activated
        found = self._judged.get(key)
        if found is None:
            found = self._judged[key] = self.judged(locals_, facts, server, activated)
        return found

    def stays_lost(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """A part of which no copy is left never has one again."""
        if self.is_lost(before) and not self.is_lost(after):
            raise Violation("a server leads, or may, although no copy was left")

    def is_lost(self, numbers: tuple[int, ...]) -> bool:
        found = self._lost.get(numbers)
        if found is None:
            servers = [self.locals.things[number] for number in numbers]
            incarnations = [each.replica.incarnation for each in servers]
            found = self._lost[numbers] = lost(incarnations, [each.disk for each in servers])
            if found and any(each.replica.leads for each in servers):
                raise Violation("a server leads although no copy is left")
        return found

    def judged(self, numbers: tuple[int, ...], facts: int, server: int, activated: Config | None) -> int:
        servers: list[Local] = [self.locals.things[number] for number in numbers]
        local, known = servers[server], self.facts.things[facts]
        unique_epochs(each.disk for each in servers)
        if activated is not None:
            if any(each.epoch == activated.epoch for each in known.activated):
                raise Violation(f"epoch {activated.epoch} began twice")
            check_base(servers, known, local, activated)
            known = known._replace(activated=known.activated | {activated})
        stable = check_stable(known, local)
        if len(stable) > len(known.stable):
            if not local.replica.leads:
                raise Violation("an item became stable without a primary")
            check_held(servers, local)
            known = known._replace(stable=stable)
        if local.done != tuple(item for item, _ in known.stable[: len(local.done)]):
            raise Violation(f"server {server} executed {local.done}, stable is {known.stable}")
        return self.facts.number(known)


def union(bits: list[int]) -> int:
    found = 0
    for bit in bits:
        found |= bit
    return found


def check_base(servers: list[Local], known: Facts, local: Local, config: Config) -> None:
    """A configuration begins with everything that was stable before, on each of its members."""
    must = [item for item, epoch in known.stable if epoch < config.epoch]
    if list(local.log[: len(must)]) != must:
        raise Violation(f"epoch {config.epoch} begins with {local.log}; stable was {must}: a receipt is lost")
    for member in config.members:
        other = servers[member.server]
        if other.replica.member == member and other.log[: config.base] != local.log[: config.base]:
            raise Violation(f"{member} is a member of epoch {config.epoch} without its base")


def check_stable(known: Facts, local: Local) -> tuple[tuple[Item, int], ...]:
    """Stable logs are prefixes of one another, and have no item twice."""
    stable, before = local.stable, tuple(item for item, _ in known.stable)
    shorter = min(len(stable), len(before))
    if stable[:shorter] != before[:shorter]:
        raise Violation(f"server {local.replica.server} has {stable} as stable, others have {before}")
    if len(set(stable)) < len(stable):
        raise Violation(f"{stable}: something counts twice")
    return known.stable + tuple((item, local.replica.synced) for item in stable[len(before) :])


def check_held(servers: list[Local], local: Local) -> None:
    """What a primary calls stable is on each member that has not died since."""
    stable = local.stable
    for member in local.replica.disk.config.members:
        other = servers[member.server]
        if other.replica.member == member and other.log[: len(stable)] != stable:
            raise Violation(f"{stable} is stable without {member}")


def heeded(local: Local, sender: int, message: Message | Copy) -> bool:
    """Whether the message may still matter to this server, now or later; what it answered before, it need not again."""
    replica, disk, standing = local.replica, local.disk, local.replica.standing
    match message:
        case Prepare(epoch):
            return epoch > disk.promised
        case Sync(epoch):
            return epoch >= disk.promised and replica.holds
        case Propose(config):
            return config.epoch >= disk.promised and config.epoch > disk.config.epoch
        case Append(config):
            return config.epoch >= disk.promised and replica.holds
        case Promise(epoch):
            return epoch > disk.promised
        case Synced(epoch):
            return epoch > disk.promised or (
                epoch == disk.promised and standing is not None and standing.config is None
            )
        case Accepted(epoch):
            return epoch > disk.promised or (epoch == disk.promised and standing is not None)
        case Held(epoch, incarnation, end, executed):
            member = SyncMember(sender, incarnation)
            if epoch == replica.synced and replica.leads:
                return not any(
                    each.member == member and each.end >= end and each.executed >= executed
                    for each in replica.progress
                )
            return epoch > replica.synced or (epoch == replica.synced and standing is not None)
        case Copy(done):
            return len(done) > replica.log.stable
    return True
