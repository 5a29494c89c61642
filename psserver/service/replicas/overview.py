"""The report of a server of a job with replicas about all of them, and a person's vote."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from psserver.replication import ReplicationError, majority
from psserver.replication.configuration import COPIES
from psserver.replication.messages import Stand
from psserver.service.errors import precondition
from psserver.service.replicas.copy import LogCopy
from psserver.service.replicas.followers import PartFollower
from psserver.service.replicas.logs import Logs, holders, part_held
from psserver.service.replicas.part import PartCopy
from psserver.service.replicas.payloads import ReplicatedHost
from pswire import running
from pswire.generations import Generation
from pswire.logs.events import event
from pswire.v1 import coordinator_pb2 as pb

log = logging.getLogger("ps-server")


class ReplicaNumbers(NamedTuple):
    """A server's numbers for its metrics.

    `takeovers`: how often it took the place of another one. `in_sync`, `lag`: the copies that count, and the items of
    the log that each other server's copy has not executed, as the one that leads knows; None for any other.
    """

    role: str
    epoch: int
    takeovers: int
    in_sync: int | None
    lag: Mapping[int, int] | None


class Overview:
    """The overview: who serves which part, who has a copy, and what one more loss would mean. The loop's thread owns
    it."""

    def __init__(self, host: ReplicatedHost, logs: Logs, copy: LogCopy | PartCopy) -> None:
        self._host, self._logs, self._copy = host, logs, copy
        self._shell = logs.own

    def found(self, unreached: int | None = None) -> pb.FindCoordinatorReply:
        """Return who leads, who serves the other parts, and where all are, as far as this server knows.

        `unreached`: the epoch of the server that leads, if whoever asks does not reach it.
        """
        self._logs.asked(unreached)
        (address, epoch), *others = map(self._server_of, range(self._logs.parts))
        parts = [pb.PartServer(address=at, epoch=since) for at, since in others]
        servers = [str(each) for each in self._shell.links.hosts if each.port]
        return pb.FindCoordinatorReply(address=address, epoch=epoch, parts=parts, servers=servers)

    def reached(self) -> None:
        """Note that a worker has reached this server."""
        self._logs.asked(None)

    def _server_of(self, part: int) -> tuple[str, int]:
        """Return the address of the server of a part, empty if it is not known, and its epoch."""
        shell, copy = self._logs.shells[part], self._copy
        own = shell is self._shell
        leader = shell.replica.server if own and copy.leads else shell.watch.primary
        config = shell.replica.disk.config
        epoch = config.epoch
        if leader is None or (own and (copy.deposed or copy.outdated)):
            return "", epoch
        if part and leader != config.primary:
            # The epoch is another server's.
            return "", epoch
        return str(shell.links.hosts[leader]), epoch

    def copies(self) -> tuple[list[pb.ServerStatus], str]:
        """Return each server with its role, as the one that leads knows, and a sentence about what one more loss would
        mean."""
        members = [self._in_sync(part) for part in range(self._logs.parts)]
        parts = {each.server: each for each in self._followers}
        found = []
        for server, address in enumerate(self._shell.links.hosts):
            part = part_held(server, self._logs.parts)
            own, other = server == self._logs.server, parts.get(part or 0)
            nbytes = self._host.nbytes if other is None else other.nbytes
            executed = self._host.state.executed if own else 0
            if other is not None and server == self._logs.primary(other.server):
                executed = other.executed
            found.append(
                pb.ServerStatus(
                    task_index=server,
                    address=str(address),
                    state=self._state(server, part, members),
                    bytes=nbytes if part is not None and (own or server in members[part]) else 0,
                    executed=executed,
                    lag=self._lag_of(server, other),
                )
            )
        here = sum(each.state != "lost" for each in found)
        waits = here < majority(len(found)) and len(self._shell.active.members) > 1
        said = self._loss(here, members, waits=waits)
        return found, f"term {self._copy.epoch} of the servers{said}"

    @property
    def _followers(self) -> list[PartFollower]:
        job = self._copy.job if isinstance(self._copy, LogCopy) else None
        followers = [] if job is None else job.routes.followers
        return [each for each in followers if isinstance(each, PartFollower)]

    def _loss(self, here: int, members: Sequence[Collection[int]], *, waits: bool) -> str:
        store = self._host.saver.store
        single = [part for part, copies in enumerate(members) if len(copies) == 1]
        saved = bool(single) and store is not None and bool(store.names())
        none = next((part for part, copies in enumerate(members) if not copies), None)
        if none is not None:
            back = (
                "end all servers and go on from the checkpoint"
                if store is not None and store.names()
                else "it is lost"
            )
            return f"; part {none} has no copy left: {back}"
        return _loss(here, self._logs.servers, single, self._logs.parts, waits=waits, saved=saved)

    def numbers(self) -> ReplicaNumbers:
        """Return this server's part in numbers."""
        replica, copy, config = self._shell.replica, self._copy, self._shell.replica.disk.config
        if copy.leads and not copy.deposed and not copy.outdated:
            role = "serves" if self._shell.part else "leads"
            in_sync = len(self._in_sync(self._shell.part))
            return ReplicaNumbers(role, config.epoch, copy.takeovers, in_sync, self._lag())
        if not replica.holds:
            role = "votes"
        else:
            role = "in sync" if replica.in_sync(config) else "learns"
        return ReplicaNumbers(role, config.epoch, copy.takeovers, None, None)

    def _lag(self) -> dict[int, int]:
        """Return how many items of the log each other server has not executed, of those whose copies are here."""
        replica = self._shell.replica
        return {
            each.member.server: max(0, replica.log.end - each.executed)
            for each in replica.progress
            if each.member.server in holders(self._shell.part) and not self._lost(each.member.server)
        }

    def _lag_of(self, server: int, other: PartFollower | None) -> int:
        if other is None:
            return self._lag().get(server, 0)
        return 0 if server == self._logs.primary(other.server) or self._lost(server) else other.lag

    def _in_sync(self, part: int) -> set[int]:
        """Return the servers whose copies of a part count: not one that has started again, nor one that is being left
        out. Of a part that is served elsewhere, those that are not lost."""
        shell = self._logs.shells[part]
        replica = shell.replica
        if shell is not self._shell:
            return {each.server for each in replica.disk.config.members if not self._lost(each.server)}
        newest = {each.member.server: each.member for each in replica.progress}
        named = {each.server for each in shell.active.members if newest.get(each.server, each) == each}
        if replica.standing is None:
            return named
        return named & {replica.server, *replica.standing.include}

    def _state(self, server: int, part: int | None, members: Sequence[Collection[int]]) -> str:
        if server == self._logs.server:
            return "leads"
        if self._lost(server):
            return "lost"
        if part is None:
            return "votes"
        if part and server == self._logs.primary(part):
            return f"serves part {part}"
        return "in sync" if server in members[part] else "learns"

    def _lost(self, server: int) -> bool:
        shell = self._shell
        if server == self._logs.server:
            return False
        return not shell.links.links[server].up or shell.watch.silent(server, running.now())

    def promote(self, job: str) -> int:
        """Have this server, one of two, go on alone: a person says that the other one is dead. Return its epoch.

        Raises Refused where that would not be safe, or is not needed, and if `job` is given and is another job.
        """
        shell = self._shell
        servers = len(shell.links.hosts)
        own = self._host.state.job
        if job and own and Generation.named(job).job != Generation.named(own).job:
            raise precondition(
                f"expected a server of the job {job}, got one of {own}, which has taken its port: start a server of "
                f"{job} at another port"
            )
        if servers > COPIES:
            raise precondition(
                f"expected one of two servers, got one of {servers}: a majority decides who leads"
            )
        if not shell.formed:
            raise precondition("expected a job that has begun, got one whose servers have not all met")
        (other,) = shell.links.links
        if not self._lost(other):
            raise precondition(f"expected server {other} to be dead, got an answer from it: end it first")
        try:
            shell.give(Stand((), operator=True))
        except ReplicationError as error:
            raise precondition(str(error)) from error
        epoch = shell.replica.disk.config.epoch
        fields = event("replica_promoted", epoch=epoch, lost=other)
        log.warning(
            "goes on alone in term %d: a person said that server %d is dead", epoch, other, extra=fields
        )
        return epoch


def _loss(here: int, servers: int, single: Sequence[int], parts: int, *, waits: bool, saved: bool) -> str:
    """Say what one more loss would mean, if that is more than nothing. `here`: servers that are not lost; `single`: the
    parts of which one copy is left; `waits`: whether nothing can be decided now; `saved`: whether there is a
    checkpoint."""
    if waits:
        vote = "" if servers > COPIES else ", or for ps-lab promote"
        return f"; the job waits for a server that was lost{vote}"
    if single:
        of = f" of part {', '.join(map(str, single))}" if parts > 1 else ""
        return f"; one copy{of} is left: its loss would {'go back to the checkpoint' if saved else 'end the job'}"
    return "; one more loss would stop the job" if here == majority(servers) else ""
