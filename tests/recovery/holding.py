"""One log on one server: what a machine of the protocol does whatever it executes, as `replicas.holding` has it.

The shell and the comparison are the servers' own. Streams between servers, disks, clocks and processes are not.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pslab.verify.invariants import expect
from psserver.replication import Config, Disk, Replica
from psserver.replication.digests import Comparison, Difference
from psserver.replication.messages import Differs, Installed, Item, Message
from psserver.service.job.log_file import LogError
from psserver.service.replicas import wire
from psserver.service.replicas.bodies import Bodies
from psserver.service.replicas.shell import Shell
from tests.recovery.network import Copy, Sent, Way
from tests.recovery.shard import Shard

if TYPE_CHECKING:
    from tests.recovery.copies import Copies, Server

# Versions between two comparisons of the copies.
COMPARED = 2


class Clock:
    """The time of the server that acts, for the shells of all servers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.later.append((self.now + seconds, call))


CLOCK = Clock()


@lru_cache(4096)
def read(message: Message, part: int) -> tuple[int, Message]:
    """Return what a server reads of a message, which goes as bytes. Many are sent again and again."""
    return wire.decode(wire.encode(message, part))


class Streams:
    """The `Links` of one server for one log."""

    def __init__(self, cluster: "Copies", server: int) -> None:
        self._cluster, self._server = cluster, server
        self.links = dict.fromkeys(n for n in range(cluster.count) if n != server)
        self.met = set(self.links)
        # Items that the stream to each server has carried: it carries each once.
        self._carried: dict[int, set[Item]] = {number: set() for number in self.links}

    def send(self, to: int, message: Message, items: Any, *, part: int = 0) -> None:
        self._cluster.may_die(self._server)
        if not self._cluster.network.up(self._server, to):
            return
        carried = self._carried[to]
        bodies = {item: body for item, body in items if item not in carried}
        carried.update(bodies)
        self._cluster.network.post(Way(self._server, to), Sent(part, message, bodies))

    def broke(self, to: int) -> None:
        """Begin another stream."""
        self._carried[to].clear()

    def forget(self, item: Item) -> None:
        for carried in self._carried.values():
            carried.discard(item)


class Holding(ABC):
    """The machine of a log on one server, which is of `part` of the model. `process`: the server."""

    process: "Server"

    def __init__(self, cluster: "Copies", number: int, part: int) -> None:
        self.cluster, self.number, self.part = cluster, number, part
        self.disk: Disk

    def hold(self, replica: Replica, *, formed: bool) -> None:
        """Begin, with nothing but what is on the disk."""
        self.shard = Shard(self.part, self.cluster.parts)
        self.leads, self.ended = False, False
        self.executed = self.upto = 0
        self.held: deque[Callable[[], None]] = deque()
        self.activation: Config | None = None
        # A copy that is here and was not taken up.
        self.arrival: Copy | None = None
        self.wanted: int | None = None
        self.comparison = Comparison()
        CLOCK.now = self.process.time
        links: Any = Streams(self.cluster, self.number)
        self.links: Streams = links
        self.shell = Shell(
            replica,
            links,
            self.keep,
            formed=formed,
            bodies=Bodies(),
            part=self.part,
            begins=self.part == 0,
            now=lambda: CLOCK.now,
            later=CLOCK.call_later,
        )
        self.shell.machine = self

    def keep(self, disk: Disk) -> None:
        """A promise, on a disk."""
        self.cluster.may_die(self.number)
        if self.process.refuses_promises:
            raise LogError("the disk takes no promise")
        expect(disk.promised >= self.disk.promised, "a promise fell")
        self.disk = disk
        self.cluster.configured(self.part, disk.config)
        self.cluster.may_die(self.number)

    # What it executes

    @abstractmethod
    def _take_again(self, body: bytes) -> None:
        """Execute an item that another server took."""

    @abstractmethod
    def _succeed(self) -> None:
        """Lead."""

    @property
    @abstractmethod
    def _begun(self) -> bool:
        """Whether there is a copy here."""

    @abstractmethod
    def _take_up(self, copy: Copy) -> None:
        """Restore from a copy."""

    @abstractmethod
    def _attempt(self) -> None:
        """Give the copy that is wanted, if that can be done now."""

    def saver(self) -> int:
        """The server that saves what the next item orders: the other copy, or this one if there is none."""
        others = [each.server for each in self.shell.active.members if each.server != self.number]
        return others[0] if others else self.number

    def saves(self, saver: int) -> bool:
        """Whether this server saves what an item orders that names `saver`."""
        return saver == self.number

    def offer(self, body: bytes, release: Callable[[], None] = lambda: None) -> None:
        self.held.append(release)
        self.shell.offer(body)

    def push(self, ticket: int, then: Callable[[], None] = lambda: None) -> None:
        """Take a payload; its receipt is given when all copies hold it."""
        if not self.shard.refuses(ticket):
            self.shard.push(ticket)
            self.offer(b"p%d" % ticket, then)

    # The log, as the shell's machine

    def execute(self, upto: int) -> None:
        self.upto = upto
        if not self.leads:
            return
        while self.executed < self.upto:
            self.executed += 1
            self.held.popleft()()
        self.shell.executed(self.executed)
        self._attempt()

    def activated(self, config: Config) -> None:
        self.cluster.activated(self.part, config)
        self.comparison.keep(config.members)
        if self.leads:
            self.wanted = None
            return
        self.activation = config

    def stepped_down(self, epoch: int) -> None:
        self.look()

    @abstractmethod
    def look(self) -> None:
        """Notice that another server leads."""

    def give_copy(self, to: int) -> None:
        self.wanted = to
        self._attempt()

    def broke(self, server: int) -> None:
        if self.wanted == server:
            self.wanted = None

    def reset(self) -> None:
        self.ended = True

    def fail(self, error: Exception) -> None:
        self.ended = True

    # Following

    def arrives(self, sender: int, copy: Copy) -> None:
        """Take a copy that another server sends, if this one needs it."""
        replica = self.shell.replica
        needed = not self.leads and not replica.in_sync(replica.disk.config) and copy.at > replica.log.stable
        primary = self.shell.watch.primary if self.shell.formed else replica.disk.config.primary
        if not needed or sender != primary or copy.epoch != replica.synced:
            return
        if self.arrival is not None and copy.at <= self.arrival.at:
            return
        if self.arrival is not None or self._begun:
            self.ended = True
            return
        self.arrival = copy

    def _learn(self) -> None:
        """Take up the copy that is here."""
        assert self.arrival is not None
        copy, self.arrival = self.arrival, None
        self._take_up(copy)
        self.executed = self.upto = copy.at
        self.shell.give(Installed(copy.at))

    def follow(self, most: int) -> None:
        """Execute items that another server took, at most so many; lead where it is this server's turn."""
        if self.arrival is not None and not self.leads:
            self._learn()
        while self.executed < self.upto and most > 0 and not self.leads:
            log = self.shell.replica.log
            body = bytes(self.shell.bodies[log.tail[self.executed - log.first]])
            self._take_again(body)
            self.executed += 1
            most -= 1
            self.shell.executed(self.executed)
        if self.activation is not None and self.executed == self.upto and not self.leads:
            self._succeed()

    # Comparing

    def compare(self, version: int) -> None:
        if version % COMPARED:
            return
        digest = str(self.shard.chain).encode()
        replica, primary = self.shell.replica, self.shell.watch.primary
        if replica.leads:
            for each in self.comparison.own(version, digest):
                self.differ(each)
        elif primary is not None and primary != self.number and replica.synced >= 0:
            told = replica.synced, replica.incarnation, version, digest
            self.cluster.network.post(Way(self.number, primary), Sent(self.part, digest=told))

    def differ(self, found: Difference) -> None:
        self.cluster.count_of["a difference is found"] += 1
        self.shell.give(Differs(found.member))
