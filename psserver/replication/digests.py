"""Divergence, watched: digests of both copies are compared."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from psserver.replication.configuration import SyncMember

#: Digests that wait for the other copy's; older ones are forgotten.
MOST_WAITING: Final = 64


@dataclass(frozen=True, slots=True)
class CopyDifference:
    """A copy that is not the primary's equal, the first number (of a version, or of an input) at which it shows, and
    both digests."""

    member: SyncMember
    at: int
    own: bytes
    theirs: bytes


class Comparison:
    """A primary's: its own digests beside those of its followers, which may come earlier or later, or not at all."""

    def __init__(self) -> None:
        self._own: dict[int, bytes] = {}
        self._theirs: dict[SyncMember, dict[int, bytes]] = {}

    def own(self, at: int, digest: bytes) -> list[CopyDifference]:
        """Take this server's digest; return the copies that differ."""
        _keep(self._own, at, digest)
        return [
            CopyDifference(member, at, digest, other)
            for member, waiting in self._theirs.items()
            if (other := waiting.pop(at, digest)) != digest
        ]

    def theirs(self, member: SyncMember, at: int, digest: bytes) -> CopyDifference | None:
        """Take a follower's digest; return the difference, if there is one."""
        if at in self._own:
            own = self._own[at]
            return CopyDifference(member, at, own, digest) if own != digest else None
        _keep(self._theirs.setdefault(member, {}), at, digest)
        return None

    def keep(self, members: Collection[SyncMember]) -> None:
        """Remember nothing more of copies that are none any more."""
        self._theirs = {member: waiting for member, waiting in self._theirs.items() if member in members}


def _keep(digests: dict[int, bytes], at: int, digest: bytes) -> None:
    digests[at] = digest
    while len(digests) > MOST_WAITING:
        del digests[min(digests)]
