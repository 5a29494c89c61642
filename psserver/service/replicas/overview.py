"""What a server of a job with replicas says about all of them, and what a person may say to it."""

import logging
import time
from collections.abc import Mapping
from typing import NamedTuple

from psserver.replication import ReplicationError, majority
from psserver.replication.messages import Stand
from psserver.service.errors import precondition
from psserver.service.replicas.copy import Copy
from psserver.service.replicas.logs import FIRST
from psserver.service.replicas.payloads import ReplicatedHost
from psserver.service.replicas.shell import Shell
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
    """Who leads, who has a copy, and what one more loss would mean. The loop's thread owns it."""

    def __init__(self, host: ReplicatedHost, shell: Shell, copy: Copy) -> None:
        self._host, self._shell, self._copy = host, shell, copy

    def found(self) -> pb.FindCoordinatorReply:
        """Return who leads, as far as this server knows."""
        replica, copy = self._shell.replica, self._copy
        leader = replica.server if copy.leads else self._shell.watch.primary
        epoch = replica.disk.config.epoch
        if leader is None or copy.deposed:
            return pb.FindCoordinatorReply(epoch=epoch)
        return pb.FindCoordinatorReply(address=str(self._shell.links.hosts[leader]), epoch=epoch)

    def copies(self) -> tuple[list[pb.ServerStatus], str]:
        """Return each server with its role, and a sentence about what one more loss would mean."""
        replica, members, lag = self._shell.replica, self._in_sync(), self._lag()
        found = []
        for server, address in enumerate(self._shell.links.hosts):
            own = server == replica.server
            found.append(
                pb.ServerStatus(
                    task_index=server,
                    address=str(address),
                    state=self._state(server, members),
                    bytes=self._host.nbytes if own or server in members else 0,
                    executed=self._host.state.executed if own else 0,
                    lag=lag.get(server, 0),
                )
            )
        here = sum(each.state != "lost" for each in found)
        waits = here < majority(len(found)) and len(self._shell.active.members) > 1
        store = self._host.saver.store
        saved = len(members) == 1 and store is not None and bool(store.names())
        said = _loss(here, len(found), len(members), waits=waits, saved=saved)
        return found, f"epoch {self._copy.epoch}{said}"

    def numbers(self) -> ReplicaNumbers:
        """Return this server's part in numbers."""
        replica, copy, config = self._shell.replica, self._copy, self._shell.replica.disk.config
        if copy.leads and not copy.deposed:
            return ReplicaNumbers("leads", config.epoch, copy.takeovers, len(self._in_sync()), self._lag())
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
            if each.member.server in FIRST and not self._lost(each.member.server)
        }

    def _in_sync(self) -> set[int]:
        """Return the servers whose copies count: not one that has started again, nor one that is being left out."""
        replica = self._shell.replica
        newest = {each.member.server: each.member for each in replica.progress}
        named = {each.server for each in self._shell.active.members if newest.get(each.server, each) == each}
        if replica.standing is None:
            return named
        return named & {replica.server, *replica.standing.include}

    def _state(self, server: int, members: set[int]) -> str:
        if server == self._shell.replica.server:
            return "leads"
        if self._lost(server):
            return "lost"
        if server not in FIRST:
            return "votes"
        return "in sync" if server in members else "learns"

    def _lost(self, server: int) -> bool:
        shell = self._shell
        return not shell.links.links[server].up or shell.watch.silent(server, time.monotonic())

    def promote(self) -> int:
        """Have this server, one of two, go on alone: a person says that the other one is dead. Return its epoch.

        Raises Refused where that would not be safe, or is not needed.
        """
        shell = self._shell
        servers = len(shell.links.hosts)
        if servers > len(FIRST):
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
            "goes on alone in epoch %d: a person said that server %d is dead", epoch, other, extra=fields
        )
        return epoch


def _loss(here: int, servers: int, copies: int, *, waits: bool, saved: bool) -> str:
    """Say what one more loss would mean, if that is more than nothing. `here`: servers that are not lost; `copies`: of
    the model; `waits`: whether nothing can be decided now; `saved`: whether there is a checkpoint."""
    if waits:
        vote = "" if servers > len(FIRST) else ", or for ps-lab promote"
        return f"; the job waits for a server that was lost{vote}"
    if copies < len(FIRST):
        return f"; one copy is left: its loss would {'go back to the checkpoint' if saved else 'end the job'}"
    return "; one more loss would stop the job" if here == majority(servers) else ""
