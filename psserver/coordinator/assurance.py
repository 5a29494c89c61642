"""Bounds that prove an update finite, so that the shards need not be asked."""

from typing import Protocol

from pswire.decisions.entries import Apply


class Assurance(Protocol):
    """Bounds on all numbers that the shards hold, maintained with every update. The coordinator owns it.

    A payload is ordinary if none of its numbers exceeds the limit that the shards check when they receive it.
    """

    def installed(self, ordinary: bool) -> None:
        """Begin at version 0. `ordinary`: whether its payload was."""
        ...

    def certain(self, update: Apply) -> bool:
        """Whether the update is certain to be finite, for any numbers of its payloads, all of which are ordinary.

        If so, the bounds now include it. False: unknown, and nothing has changed.
        """
        ...

    def measured(self, largest: float) -> None:
        """Learn that after an update no number on any shard exceeds `largest`."""
        ...


class Certain:
    """Takes every update for finite: for a coordinator without shards to ask."""

    def installed(self, ordinary: bool) -> None:
        """Do nothing."""

    def certain(self, update: Apply) -> bool:
        """Return True."""
        return True

    def measured(self, largest: float) -> None:
        """Do nothing."""
