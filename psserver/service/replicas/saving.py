"""Which copy of a part saves it for a checkpoint, and how its primary hears of that."""

from collections.abc import Iterable
from typing import Final

from psserver.checkpoint import FileFacts
from psserver.replication import SyncMember
from psserver.service.net.orders import saved_to_wire
from psserver.service.replicas.payloads import ReplicatedHost
from psserver.service.replicas.shell import Shell
from psserver.service.store.shard_part import Part
from psserver.shard import Shard
from pswire.v1 import shard_pb2

#: Why a part is not saved whose saver is gone.
GONE: Final = "the server that was to save this part was lost"
# Bytes of a server's number in an item.
NUMBER: Final = 4


class Saving:
    """Has one copy of a part save it: the follower, so that the primary has no pause, or a primary that is alone.

    The primary decides that when it offers an item, and the item says it: so a part of one checkpoint has one saver.
    The loop's thread owns it.
    """

    def __init__(self, host: ReplicatedHost, shell: Shell) -> None:
        self._host, self._shell = host, shell
        # Entries whose part this server saves, and has not begun to.
        self._due: set[int] = set()
        # A primary's: entries whose part the follower has not told of.
        self._awaited: dict[int, SyncMember] = {}
        # A follower's: what it has told, by epoch and entry; and entries whose part another server saves.
        self._told: set[tuple[int, int]] = set()
        self._elsewhere: list[int] = []
        host.orders.save = self._save

    def _save(self, entry: int, shard: Shard) -> bool:
        if entry not in self._due:
            return False
        self._due.discard(entry)
        return self._host.saver.save(entry, self._host.job, shard)

    # The primary

    def choose(self) -> SyncMember:
        """Return who saves what the next item orders."""
        own, members = self._shell.replica.member, self._shell.active.members
        return next((each for each in members if each != own), own)

    def lead(self, saver: SyncMember, entries: Iterable[int]) -> None:
        """Take the entries of an item that order checkpoints. `saver`: as `choose` returned for it."""
        for entry in entries:
            if saver == self._shell.replica.member:
                self._due.add(entry)
            elif saver in self._shell.active.members:
                self._awaited[entry] = saver
            else:
                self._host.saver.note(Part(entry, error=GONE))

    def hear(self, sender: int, saved: shard_pb2.Saved) -> None:
        """Take what the follower has saved."""
        saver = self._awaited.get(saved.entry)
        if saver is not None and saver.server == sender:
            del self._awaited[saved.entry]
            files = {each.name: FileFacts(each.bytes, each.sha256) for each in saved.files}
            self._host.saver.note(Part(saved.entry, files, saved.error))

    def activated(self) -> None:
        """Give up what a follower was to save that is none any more."""
        for entry, saver in list(self._awaited.items()):
            if saver not in self._shell.active.members:
                del self._awaited[entry]
                self._host.saver.note(Part(entry, error=GONE))

    def succeed(self) -> None:
        """Give up what the former primary was to save."""
        for entry in self._elsewhere:
            self._host.saver.note(Part(entry, error=GONE))
        self._elsewhere.clear()

    # A follower

    def follow(self, saver: int, entries: Iterable[int]) -> None:
        """Take the entries of an item that order checkpoints. `saver`: the server that the item names."""
        for entry in entries:
            if saver == self._shell.replica.server:
                self._due.add(entry)
                self._elsewhere.clear()
            else:
                self._elsewhere = [entry]

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


def named(saver: SyncMember) -> bytes:
    """Return what an item says of who saves what it orders."""
    return saver.server.to_bytes(NUMBER, "little")


def saver_of(item: memoryview) -> tuple[int, memoryview]:
    """Return the server that an item names, and the rest of the item."""
    return int.from_bytes(item[:NUMBER], "little"), item[NUMBER:]
