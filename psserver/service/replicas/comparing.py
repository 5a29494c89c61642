"""Divergence of the two copies, noticed: digests of each so many versions, and of what decided them, are compared."""

import hashlib
import json
import logging
from typing import Final

from psserver.coordinator import Coordinator
from psserver.records import StateError
from psserver.replication import Config, SyncMember
from psserver.replication.digests import Comparison, CopyDifference
from psserver.replication.messages import Differs
from psserver.service.replicas.shell import Shell
from psserver.service.replicas.transfer import digest_of, digested, first_difference
from psserver.service.store.executor import Question
from psserver.service.store.host import ShardHost
from pswire.logs.events import event
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

#: One version in so many is compared: a pass over the weights takes a few of an update's.
EVERY: Final = 100
# Bytes of the digest of a coordinator, which comes before that of the weights.
DECIDED: Final = 16
COORDINATOR: Final = "what the coordinator knows"


class Comparing:
    """Digests of this server's copy, beside the other one's. The loop's thread owns it.

    A primary compares; any other server sends it its digests. `every`: so many versions apart.
    """

    def __init__(self, host: ShardHost, shell: Shell, every: int = EVERY) -> None:
        self._host, self._shell, self._every = host, shell, every
        self._comparison = Comparison()
        # The newest version decided, and made.
        self._decided = self._version = 0
        # Digests of the coordinator behind the inputs that made versions.
        self._coordinator: dict[int, bytes] = {}

    def begin(self, version: int) -> None:
        """Go on behind that version."""
        self._decided = self._version = version

    def decided(self, coordinator: Coordinator) -> None:
        """Compute a digest of the whole coordinator, behind the input that made its newest version, if one is due."""
        before, self._decided = self._decided, coordinator.state.version
        if self._decided // self._every > before // self._every:
            self._coordinator[self._decided] = _digest_of_state(coordinator)

    def made(self, version: int, entries: int) -> None:
        """Compute a digest of the newest version, behind the first `entries` entries, if one is due. A part without the
        coordinator has none of that."""
        before, self._version = self._version, version
        if version // self._every > before // self._every:
            decided = self._coordinator.pop(version, bytes(DECIDED))
            turn = version // self._every
            ask = Question(
                digested,
                lambda shard: digest_of(shard, turn),
                lambda found: self._own(version, decided + found),
            )
            self._host.orders.submit([(entries, ask)])

    def _own(self, version: int, digest: bytes) -> None:
        replica, links, primary = self._shell.replica, self._shell.links.links, self._shell.watch.primary
        if replica.leads:
            for each in self._comparison.own(version, digest):
                self._differ(each)
        elif primary in links and replica.synced >= 0:
            found = shard_pb2.VersionDigest(
                epoch=replica.synced, incarnation=replica.incarnation, version=version, digest=digest
            )
            links[primary].put(shard_pb2.ReplicatePart(digest=found))

    def theirs(self, sender: int, told: shard_pb2.VersionDigest) -> None:
        """Take a follower's digest."""
        replica, member = self._shell.replica, SyncMember(sender, told.incarnation)
        if replica.leads and told.epoch == replica.synced and member in replica.disk.config.members:
            found = self._comparison.theirs(member, told.version, told.digest)
            if found is not None:
                self._differ(found)

    def activated(self, config: Config) -> None:
        """Forget copies that are none any more."""
        self._comparison.keep(config.members)

    def _differ(self, found: CopyDifference) -> None:
        shard, server = self._host.state.shard, found.member.server
        assert shard is not None
        if found.own[:DECIDED] != found.theirs[:DECIDED]:
            variable = COORDINATOR
        else:
            variable = first_difference(shard, found.own[DECIDED:], found.theirs[DECIDED:])
        fields = event("copies_differ", server=server, version=found.at, variable=variable)
        log.error(
            "server %d's version %d differs from this server's, first in %s: that copy counts no more and is made "
            "again",
            *(server, found.at, variable),
            extra=fields,
        )
        self._shell.give(Differs(found.member))


def _digest_of_state(coordinator: Coordinator) -> bytes:
    try:
        state = json.dumps(coordinator.saved(), sort_keys=True)
    except StateError:
        # Of a policy that cannot be saved.
        state = f"{coordinator.state.entries} entries"
    return hashlib.blake2b(state.encode(), digest_size=DECIDED).digest()
