"""Reads of versions that are under way: whose they are, and which of them end when they hold too much."""

from collections.abc import Sequence
from dataclasses import dataclass

from psserver.service.limits.table import READS
from psserver.service.limits.watch import Caller
from psserver.shard.arena import Version


@dataclass(slots=True, eq=False)
class Read:
    """`caller`: to be cut; None for one that is never cut."""

    worker: str
    version: Version
    caller: Caller | None


class Reads:
    """The loop's thread owns it."""

    def __init__(self) -> None:
        # In the order in which they began.
        self._under_way: dict[Read, None] = {}

    def begin(self, worker: str, version: Version, caller: Caller | None) -> Read:
        """One more. A worker has few at once: of more, the oldest is cut."""
        mine = [read for read in self._under_way if read.worker == worker and _going(read)]
        if len(mine) >= READS.value:
            _cut(mine[0])
        read = Read(worker, version, caller)
        self._under_way[read] = None
        return read

    def end(self, read: Read) -> None:
        del self._under_way[read]

    def cut(self, lent: Sequence[Version], most: int) -> None:
        """End the oldest reads of so many of these versions."""
        for version in lent[:most]:
            for read in self._under_way:
                if read.version is version:
                    _cut(read)


def _going(read: Read) -> bool:
    return read.caller is not None and not read.caller.cut_off


def _cut(read: Read) -> None:
    if read.caller is not None:
        read.caller.cancel()
