"""Whoever has proven nothing yet, by the address that he comes from: a noisy one takes nobody else's room. Pure."""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Peer = TypeVar("Peer", bound=Hashable)


class Strangers(Generic[Peer]):
    """At most `most` at once, and of one address `of_one` (None: no limit of its own). One too many, and the oldest of
    the address that has the most is cut: whoever comes alone stays.

    Those without an address (empty: a Unix socket's) have no limit of their own.
    """

    def __init__(self, most: int, of_one: int | None = None) -> None:
        self.most, self._of_one = most, of_one
        # In the order in which they came; an address without any is forgotten.
        self._of: dict[str, dict[Peer, None]] = {}
        self._where: dict[Peer, str] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, peer: object) -> bool:
        return peer in self._where

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._where)

    def came(self, peer: Peer, address: str) -> list[Peer]:
        """It is one of them; those that are to be cut for it are none any more."""
        cut = []
        if self._of_one is not None and address and len(self._of.get(address, ())) >= self._of_one:
            cut.append(self._oldest(address))
        while self._where and len(self._where) >= self.most:
            cut.append(self._oldest(self._noisiest(address)))
        self._of.setdefault(address, {})[peer] = None
        self._where[peer] = address
        return cut

    def gone(self, peer: Peer) -> None:
        """It has ended, or proven something. Any number of times."""
        address = self._where.pop(peer, None)
        if address is None:
            return
        there = self._of[address]
        del there[peer]
        if not there:
            del self._of[address]

    def _noisiest(self, coming: str) -> str:
        """The address that has the most of them, with the one that comes; of several the one that came first."""
        return max(self._of, key=lambda address: len(self._of[address]) + (address == coming))

    def _oldest(self, address: str) -> Peer:
        peer = next(iter(self._of[address]))
        self.gone(peer)
        return peer


def address_of(peer: str) -> str:
    """Of a gRPC peer ("ipv4:192.0.2.1:4321") what all connections of one machine share; empty without a port."""
    kind, _, place = peer.partition(":")
    return place.rpartition(":")[0] if kind in ("ipv4", "ipv6") else ""
