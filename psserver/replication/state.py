"""The state of one server in one replicated log, and the turn in which an input changes it."""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from psserver.replication.configuration import Config, StableMemory, SyncMember
from psserver.replication.log import Log
from psserver.replication.messages import Execute, Message, Output, Persist, Promise, Send, StepDown

#: `Replica.synced` of a copy that has never been equal to a primary's log.
NEVER: Final = -1


class Progress(NamedTuple):
    """How far a follower or learner is, as its primary knows. `copying`: a copy of `executed` items or more is under
    way to it, and nothing before them is here any more."""

    member: SyncMember
    end: int
    executed: int
    copying: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """A candidate's attempt: promises first, then logs made equal, then the configuration accepted."""

    epoch: int
    include: tuple[int, ...]
    operator: bool = False
    promises: frozenset[tuple[int, Promise]] = frozenset()
    synced: frozenset[SyncMember] = frozenset()
    config: Config | None = None
    accepted: frozenset[int] = frozenset()


class Replica(NamedTuple):
    """One server's part in one log. `servers` vote; `holds`: this one may have a copy.

    `synced`: the epoch with whose log this one was last made equal. `heard`: the highest epoch met in a refusal.
    `progress`, `expelled`: a primary's. A server is *sealed* while it has promised more than `synced`: it neither
    appends nor acknowledges.
    """

    server: int
    servers: int
    incarnation: int
    holds: bool
    disk: StableMemory
    log: Log = Log()
    synced: int = NEVER
    leads: bool = False
    heard: int = 0
    progress: tuple[Progress, ...] = ()
    expelled: frozenset[SyncMember] = frozenset()
    standing: Standing | None = None

    @property
    def member(self) -> SyncMember:
        """This server in its present incarnation."""
        return SyncMember(self.server, self.incarnation)

    @property
    def sealed(self) -> bool:
        """Whether it has promised more than it is synced to."""
        return self.disk.promised > self.synced

    def in_sync(self, config: Config) -> bool:
        """Return whether this copy has everything that became stable up to the epoch of `config`."""
        return self.member in config.members and self.synced >= config.epoch


def begin(server: int, servers: int, config: Config) -> Replica:
    """Return the replica with which a generation begins; its `disk` must be on the disk before the first input."""
    member = SyncMember(server, 0)
    holds = member in config.members
    leads = config.primary == server
    others = tuple(Progress(each, 0, 0) for each in config.members if leads and each != member)
    disk = StableMemory(config.epoch, config)
    synced = config.epoch if holds else NEVER
    return Replica(server, servers, 0, holds, disk, synced=synced, leads=leads, progress=others)


def restart(server: int, servers: int, incarnation: int, holds: bool, disk: StableMemory) -> Replica:
    """Return the replica of a restarted server. `incarnation` is one that it never had.

    It has no copy and is no member, whatever its configuration says: members of that name are earlier incarnations.
    """
    return Replica(server, servers, incarnation, holds, disk)


@dataclass(slots=True)
class InputTurn:
    """One input's work: the state so far, and the outputs in order."""

    state: Replica
    outputs: list[Output] = field(default_factory=list)

    def set(self, **changes: Any) -> None:
        self.state = self.state._replace(**changes)

    def send(self, to: int, message: Message) -> None:
        self.outputs.append(Send(to, message))

    def send_all(self, message: Message) -> None:
        for server in range(self.state.servers):
            if server != self.state.server:
                self.send(server, message)

    def persist(self, promised: int, config: Config | None = None) -> None:
        """Put a promise, and a configuration where one is given, on the disk, unless they are there.

        An own attempt below a promise ends, and so does the lead of a primary that accepts a later configuration: what
        it leads is the configuration on its disk.
        """
        disk = StableMemory(max(promised, self.state.disk.promised), config or self.state.disk.config)
        if disk != self.state.disk:
            self.set(disk=disk)
            self.outputs.append(Persist(disk))
        standing = self.state.standing
        if standing is not None and standing.epoch < disk.promised:
            self.set(standing=None)
        if self.state.leads and disk.config.epoch > self.state.synced:
            self.step_down(disk.config.epoch)

    def step_down(self, epoch: int) -> None:
        """Lead no more, if this server does."""
        if self.state.leads:
            self.set(leads=False, progress=())
            self.outputs.append(StepDown(epoch))

    def stabilise(self, log: Log, stable: int) -> None:
        """Set the log, with its first `stable` items stable, and have them executed."""
        log = log.stabilised(stable)
        if log.stable > self.state.log.stable:
            self.outputs.append(Execute(log.stable))
        self.set(log=log)
