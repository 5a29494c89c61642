"""The logs of all parts of the model on one server: it has a copy of one part at most, and votes in all of them."""

import logging
from collections.abc import Callable
from typing import Final

from psserver.checkpoint.resumption import AUTO
from psserver.replication import Config, Replica, StableMemory, begin, first_config, restart
from psserver.replication.configuration import COPIES
from psserver.replication.losing import lost
from psserver.replication.messages import Message
from psserver.replication.reach import REST, UNASKED, Reach
from psserver.service.errors import invalid
from psserver.service.job.log_file import LogError
from psserver.service.replicas.bodies import Bodies
from psserver.service.replicas.disk import Promises, Remembered
from psserver.service.replicas.links import Links
from psserver.service.replicas.shell import Machine, Shell
from pswire import running
from pswire.addresses import Address
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")


def holders(part: int) -> tuple[int, ...]:
    """Return the servers that may have a copy of a part; the first one is its first primary."""
    return tuple(range(COPIES * part, COPIES * (part + 1)))


def part_held(server: int, parts: int) -> int | None:
    """Return the part of `parts` of which a server may have a copy; None: it only votes."""
    part = server // COPIES
    return part if part < parts else None


#: Of part 0, with which the coordinator is.
FIRST: Final = holders(0)


class Voter:
    """The machine of a log of which this server has no copy. `failed`: called if it takes no further part."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self.fail = failed

    def execute(self, upto: int) -> None:
        """Do nothing, as all others: a log without items leads to nothing here."""

    def activated(self, config: Config) -> None: ...

    def stepped_down(self, epoch: int) -> None: ...

    def give_copy(self, to: int) -> None: ...

    def broke(self, server: int) -> None: ...

    def reset(self) -> None: ...


class Logs:
    """This server's part in each log, with its promises on the disk. The loop's thread owns it.

    `anew`: it never ran in this generation, which begins. `shells`: by part, once there are links.
    """

    def __init__(self, server: int, servers: int, parts: int, promises: Promises, resume: str | None) -> None:
        """`resume`: a checkpoint, from which all servers begin anew: server 0 from its state, and server 1 without a
        copy; with "auto" only if this server never ran in this generation, or that one is over. Raises LogError."""
        self.server, self.servers, self.parts = server, servers, parts
        self._promises = promises
        former = promises.read()
        newest = promises.newest_generation()
        self.generation = 0 if former is None else former.generation
        if resume == AUTO and former is not None and former.generation == newest and self.over(former):
            self.generation = newest + 1
        elif resume == AUTO:
            # The others may have begun it while this server was not there.
            self.generation = max(newest, 0)
        elif resume is not None:
            # Beyond that of every server: there may be another number of them now.
            self.generation = newest + 1
        self.anew = former is None or former.generation < self.generation
        if former is None or self.anew:
            self._replicas = [self._begun(part, resume is not None) for part in range(self.parts)]
            incarnation = 0
        elif len(former.disks) != self.parts:
            raise LogError(
                f"this server has promised in {len(former.disks)} logs, and this job has {parts}: "
                "end all servers, and start all of them with --resume latest"
            )
        else:
            incarnation = former.incarnation + 1
            self._replicas = [
                restart(server, servers, incarnation, server in holders(part), former.disks[part])
                for part in range(self.parts)
            ]
        self._remembered = Remembered(
            self.generation, incarnation, tuple(each.disk for each in self._replicas)
        )
        self.shells: list[Shell] = []
        self._reach = Reach(running.now())

    def over(self, former: Remembered) -> bool:
        """Return whether nothing goes on in that generation: its job has ended without success, or a part is lost."""
        ended = self._promises.read_end(former.generation)
        return self.lost_part() is not None if ended is None else ended[0] != ExitCode.OK

    def lost_part(self) -> int | None:
        """Return a part of which no copy is left, by what all servers have on their disks; None if each has one."""
        found = self._promises.of_all(self.servers)
        if found is None or any(len(each.disks) != self.parts for each in found):
            return None
        incarnations = [each.incarnation for each in found]
        parts = (lost(incarnations, [each.disks[part] for each in found]) for part in range(self.parts))
        return next((part for part, is_lost in enumerate(parts) if is_lost), None)

    def unserved(self) -> bool:
        """Return whether a part has shown for a while nobody who serves it."""
        now = running.now()
        return any(
            not shell.replica.leads and shell.watch.leaderless(self.primary(part), now)
            for part, shell in enumerate(self.shells)
        )

    @property
    def own(self) -> Shell:
        """The log of the part of which this server has a copy; that of part 0, if it has none."""
        return self.shells[part_held(self.server, self.parts) or 0]

    def _begun(self, part: int, from_checkpoint: bool) -> Replica:
        """Return the replica with which a generation begins. With a checkpoint server 1 gets a copy of the coordinator,
        while copies of other parts read it alike."""
        members = holders(part)
        first = first_config(members[:1] if from_checkpoint and not part else members, self.generation)
        if self.server in members and all(each.server != self.server for each in first.members):
            return restart(self.server, self.servers, 0, True, StableMemory(first.epoch, first))
        return begin(self.server, self.servers, first)

    def primary(self, part: int) -> int:
        """Return the server that serves a part, as far as this one knows."""
        shell = self.shells[part]
        server, last = shell.watch.primary, shell.replica.disk.config.primary
        return last if server is None or not shell.formed else server

    def serves(self, part: int) -> tuple[int, Address]:
        """Return index and address of the server that serves a part, as far as this one knows."""
        server = self.primary(part)
        return server, self.own.links.hosts[server]

    def persist(self) -> None:
        """Write what this server begins with. Raises LogError."""
        self._promises.write(self._remembered)

    def open(self, links: Links, bodies: Bodies, most: int) -> None:
        """Take part by way of these links."""
        self._links = links
        for part, replica in enumerate(self._replicas):
            keep = self._keeps(part)
            formed = not self.anew
            shell = Shell(
                replica, links, keep, formed=formed, most=most, bodies=bodies, part=part, begins=part == 0
            )
            self.shells.append(shell)

    def _keeps(self, part: int) -> Callable[[StableMemory], None]:
        def keep(disk: StableMemory) -> None:
            self._remembered = self._remembered.with_promise(part, disk)
            self.persist()

        return keep

    def vote(self, failed: Callable[[Exception], None]) -> None:
        """Have this server only vote in logs that have no other machine."""
        for shell in self.shells:
            if not hasattr(shell, "machine"):
                machine: Machine = Voter(failed)
                shell.machine = machine

    # What comes in

    def receive(self, sender: int, part: int, message: Message) -> None:
        """Take a message about a part's log. Raises Refused for a part that there is not."""
        if part >= len(self.shells):
            raise invalid(f"expected a part below {len(self.shells)}, got {part}")
        self.shells[part].receive(sender, message)

    def broke(self, server: int) -> None:
        """Note that a stream from or to a server broke."""
        for shell in self.shells:
            shell.broke(server)
            shell.tick()

    def alive(self, sender: int, now: float, *, leads: bool) -> None:
        """Note a sign of life. `leads`: only the primary of this server's own part gives such."""
        for shell in self.shells:
            (shell.watch.led if leads and shell is self.own else shell.watch.alive)(sender, now)

    def asked(self, unreached: int | None) -> None:
        """Note that a client asks who leads. `unreached`: the epoch of the one that it does not reach, if it says
        so."""
        self._reach.asked(running.now(), unreached)

    def unreached(self, sender: int, epoch: int) -> None:
        """Leave the lead of part 0 to that server, which clients reach, if they do not reach this one."""
        now, shell = running.now(), self.shells[0]
        if self._reach.rests(shell.replica, sender, epoch, now):
            shell.rests_until = now + REST
            log.warning(
                "no worker has reached this server for %g s, and they reach server %d: leaves that one the lead",
                *(UNASKED, sender),
                extra=event("replica_unreached", epoch=epoch, server=sender),
            )

    def tick(self) -> None:
        """Let time pass."""
        for shell in self.shells:
            shell.tick()
        replica, now = self.shells[0].replica, running.now()
        self._reach.look(replica, now, formed=self.formed)
        if self._reach.tells(replica, now):
            config = replica.disk.config
            part = shard_pb2.ReplicatePart(unreached=shard_pb2.Unreached(epoch=config.epoch))
            self._links.links[config.primary].put(part)

    def beat(self) -> None:
        for shell in self.shells:
            shell.beat()

    @property
    def formed(self) -> bool:
        return all(shell.formed for shell in self.shells)
