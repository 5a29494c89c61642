"""One log on one server: what a machine of the protocol does whatever it executes, as `replicas.holding` has it.

The shell and the comparison are the servers' own. Streams between servers, disks, clocks and processes are not.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pslab.verify.invariants import expect
from psserver.coordinator import Record
from psserver.replication import Config, Disk, Replica
from psserver.replication.digests import Comparison, Difference
from psserver.replication.messages import Differs, Item, Message
from psserver.service.job.log_file import LogError
from psserver.service.replicas import wire
from psserver.service.replicas.bodies import Bodies, Body
from psserver.service.replicas.shell import Shell
from psserver.shard import ShardState
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


@dataclass
class Sent:
    """What a stream between two servers carries: a message with bodies, a copy, a digest, orders, what was executed of
    them, or its own end. `part`: of the model, whose log or orders it is about."""

    part: int = 0
    data: bytes = b""
    bodies: Mapping[Item, Body] = field(default_factory=dict)
    copy: tuple[int, int, Any, ShardState] | None = None
    digest: tuple[int, int, bytes] | None = None
    # The epoch of the coordinator, the stream's number, and orders; None as it begins. What was executed of them.
    orders: tuple[int, int, list[Record] | None] | None = None
    executed: tuple[int, int] | None = None
    broke: bool = False


class Streams:
    """The `Links` of one server."""

    def __init__(self, cluster: "Copies", server: int) -> None:
        self._cluster, self._server = cluster, server
        self.links = dict.fromkeys(n for n in range(cluster.count) if n != server)
        self.met = set(self.links)

    def send(self, to: int, message: Message, items: Any, *, part: int = 0) -> None:
        self._cluster.may_die(self._server)
        self._cluster.post(self._server, to, Sent(part, wire.encode(message, part), dict(items)))

    def forget(self, item: Item) -> None:
        pass


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
        self.wanted: int | None = None
        self.comparison = Comparison()
        CLOCK.now = self.process.time
        links: Any = Streams(self.cluster, self.number)
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

    @abstractmethod
    def arrives(self, sender: int, copy: Any) -> None:
        """Take up a copy, if this server needs one."""

    @abstractmethod
    def _attempt(self) -> None:
        """Give the copy that is wanted, if that can be done now."""

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

    def needs(self, sender: int, at: int, epoch: int) -> bool:
        """Whether this server needs a copy that another one sends."""
        replica = self.shell.replica
        needed = not self.leads and not replica.in_sync(replica.disk.config) and at > replica.log.stable
        return needed and sender == self.shell.watch.primary and epoch == replica.synced

    def follow(self, most: int) -> None:
        """Execute items that another server took, at most so many; lead where it is this server's turn."""
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
            told = replica.incarnation, version, digest
            self.cluster.post(self.number, primary, Sent(self.part, digest=told))

    def differ(self, found: Difference) -> None:
        self.cluster.count_of["a difference is found"] += 1
        self.shell.give(Differs(found.member))
