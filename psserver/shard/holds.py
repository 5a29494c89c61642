"""The versions that tickets hold."""

from collections.abc import Mapping
from typing import Protocol


class Versions(Protocol):
    """Versions by number. A version is kept while it is the newest, or is held."""

    @property
    def newest(self) -> int: ...

    def hold(self, number: int) -> None: ...

    def release(self, number: int) -> None: ...

    def take_back(self, number: int) -> None: ...


class Holds:
    """Has each ticket hold the version that it was granted, until it has read it; or, with `keep`, until it is over,
    because updates compare contributions with it."""

    def __init__(self, versions: Versions, *, keep: bool) -> None:
        self._versions, self._keep = versions, keep
        # Ticket -> version.
        self._of: dict[int, int] = {}

    def grant(self, ticket: int, version: int) -> None:
        """Hold a version for a ticket."""
        self._versions.hold(version)
        self._of[ticket] = version

    def of(self, ticket: int) -> int | None:
        """Return the version that the ticket holds."""
        return self._of.get(ticket)

    def has_read(self, ticket: int) -> None:
        """Note that the ticket has read its version. Unknown ones are ignored."""
        if not self._keep:
            self.end(ticket)

    def end(self, ticket: int) -> None:
        """Note that the ticket is over. Unknown ones are ignored."""
        version = self._of.pop(ticket, None)
        if version is not None:
            self._versions.release(version)

    @property
    def unread(self) -> list[int]:
        """The tickets that hold older versions than the newest."""
        return [ticket for ticket, version in self._of.items() if version != self._versions.newest]

    def take_back(self) -> None:
        """Take older versions from the tickets that hold them."""
        for version in {self._of.pop(ticket) for ticket in self.unread}:
            self._versions.take_back(version)

    # State

    def state(self) -> list[tuple[int, int]]:
        """Return (ticket, version) of each hold."""
        return list(self._of.items())

    def restore(self, held: Mapping[int, int]) -> None:
        """Take up what `state` returned."""
        for ticket, version in held.items():
            self.grant(ticket, version)
