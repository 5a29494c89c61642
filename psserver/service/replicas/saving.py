"""Which copy of a part saves it for a checkpoint, and how its primary hears of that."""

from typing import Final

from psserver.checkpoint import FileFacts
from psserver.service.net.orders import saved_to_wire
from psserver.service.replicas.payloads import ReplicatedHost
from psserver.service.replicas.shell import Shell
from psserver.service.store.shard_part import Part
from psserver.shard import Shard
from pswire.v1 import shard_pb2

#: Why a part is not saved whose follower was to save it.
GONE: Final = "the server that was to save this part was lost"


class Saving:
    """Has the follower of a part save it, so that the primary has no pause; or a primary that is alone.

    The loop's thread owns it. `here`: whether this server saves what the orders under way say. The primary decides
    that, and an item of the log says it to the follower, so both decide alike.
    """

    def __init__(self, host: ReplicatedHost, shell: Shell) -> None:
        self._host, self._shell = host, shell
        self.here = False
        # A primary's: entries whose part the follower has not told of.
        self._awaited: list[int] = []
        # A follower's: what it has told, by epoch and entry.
        self._told: set[tuple[int, int]] = set()
        host.orders.save = self._save

    def _save(self, entry: int, shard: Shard) -> bool:
        if not self.here:
            self._host.saver.passes()
            return False
        return self._host.saver.save(entry, self._host.job, shard)

    def order(self, request: shard_pb2.FollowRequest) -> bool:
        """Take orders, as the primary; return whether the follower saves what they say."""
        entries = [each.index for each in request.decisions.decisions if each.HasField("save")]
        self.here = len(self._shell.active.members) == 1
        if not self.here:
            self._awaited += entries
        return bool(entries) and not self.here

    def follow(self, *, saves: bool) -> None:
        """Take orders, as a copy. `saves`: the follower saves what they say. A learner is none yet."""
        replica = self._shell.replica
        self.here = saves and replica.in_sync(replica.disk.config)

    def tell(self) -> None:
        """Tell the primary what was saved here, and again each one that follows."""
        replica, primary = self._shell.replica, self._shell.watch.primary
        link, parts = self._shell.links.links.get(-1 if primary is None else primary), self._host.saver.parts
        if link is None or not link.up:
            return
        for entry, part in parts.items():
            if (replica.synced, entry) not in self._told:
                self._told.add((replica.synced, entry))
                link.put(shard_pb2.ReplicatePart(saved=saved_to_wire(part)))
        self._told = {told for told in self._told if told[1] in parts}

    def hear(self, sender: int, saved: shard_pb2.Saved) -> None:
        """Take what the follower has saved, as the primary."""
        if any(each.server == sender for each in self._shell.active.members) and saved.entry in self._awaited:
            self._awaited.remove(saved.entry)
            files = {each.name: FileFacts(each.bytes, each.sha256) for each in saved.files}
            self._host.saver.note(Part(saved.entry, files, saved.error))

    def activated(self) -> None:
        """Give up what a follower was to save that is none any more."""
        if len(self._shell.active.members) == 1:
            for entry in self._awaited:
                self._host.saver.note(Part(entry, error=GONE))
            self._awaited.clear()
