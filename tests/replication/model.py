"""One server of one log under test: its replica, its disk, and what it has executed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from psserver.replication import Config, Replica, StableMemory, begin, restart, take
from psserver.replication.messages import (
    Activate,
    Execute,
    Executed,
    GiveCopy,
    Input,
    Installed,
    Item,
    Message,
    Persist,
    Reset,
    Send,
)


class Violation(Exception):
    """A broken promise of the protocol."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What a learner is sent: everything that its primary has executed."""

    done: tuple[Item, ...]


class Local(NamedTuple):
    """A server. `disk`: what a loss of power leaves. `done`: what it has executed, in order."""

    replica: Replica
    disk: StableMemory
    done: tuple[Item, ...] = ()

    @property
    def log(self) -> tuple[Item, ...]:
        """The whole log, with what the replica has forgotten."""
        log = self.replica.log
        return self.done[: log.first] + log.tail

    @property
    def stable(self) -> tuple[Item, ...]:
        return self.log[: self.replica.log.stable]


class Done(NamedTuple):
    """The outcome of a step. `torn`: what is left if the power fails in the middle of it, and what was sent by then."""

    local: Local
    sent: tuple[tuple[int, Message | Copy], ...]
    activated: Config | None
    torn: tuple[tuple[Local, int], ...]


def started(server: int, servers: int, config: Config) -> Local:
    replica = begin(server, servers, config)
    return Local(replica, replica.disk)


def crashed(local: Local) -> Local:
    """Lose all but the disk, and start again."""
    old = local.replica
    return Local(restart(old.server, old.servers, old.incarnation + 1, old.holds, local.disk), local.disk)


def step(local: Local, given: Input | Copy, *, forgets: bool = True) -> Done:
    """Give a server an input and carry out the outputs in order. `forgets`: tell it at once what is executed."""
    sent: list[tuple[int, Message | Copy]] = []
    torn: list[tuple[Local, int]] = []
    activated = None
    inputs: list[Input] = []
    if isinstance(given, Copy):
        if len(given.done) > local.replica.log.stable:
            local = local._replace(done=given.done)
        given = Installed(len(given.done))
    inputs.append(given)
    while inputs:
        state, outputs = take(local.replica, inputs.pop(0))
        local = local._replace(replica=state)
        for output in outputs:
            match output:
                case Persist(disk):
                    if sent:
                        torn.append((crashed(local), len(sent)))
                    local = local._replace(disk=disk)
                case Send(to, message):
                    sent.append((to, message))
                case Execute(upto):
                    local = local._replace(done=local.done + local.log[len(local.done) : upto])
                    if forgets:
                        inputs.append(Executed(upto))
                case GiveCopy(to, at):
                    sent.append((to, Copy(local.done[:at])))
                case Activate(config):
                    activated = config
                case Reset():
                    local = crashed(local)
                    inputs.clear()
    return Done(local, tuple(sent), activated, tuple(torn))


def unique_epochs(disks: Iterator[StableMemory]) -> None:
    """At most one configuration of each epoch."""
    known: dict[int, Config] = {}
    for disk in disks:
        if known.setdefault(disk.config.epoch, disk.config) != disk.config:
            raise Violation(f"two configurations of epoch {disk.config.epoch}")
        if disk.config.epoch > disk.promised:
            raise Violation("a configuration was accepted above the promise")
