"""What is known beforehand of an update's numbers, so that the shards need not be asked whether they are finite."""

from typing import Protocol

from pswire.decisions.entries import Apply


class Assurance(Protocol):
    """Bounds on all that the shards hold, moved on with every update. The coordinator owns it.

    A payload is ordinary when none of its numbers is beyond what the shards check at its receipt.
    """

    def installed(self, ordinary: bool) -> None:
        """Version 0 is here; `ordinary`: its payload was."""
        ...

    def certain(self, update: Apply) -> bool:
        """The update is finite whatever the numbers of its payloads, all of which are ordinary.

        It is taken to be made then. False: nobody knows; nothing has changed.
        """
        ...

    def measured(self, largest: float) -> None:
        """An update was made that leaves no number beyond `largest` on any shard."""
        ...


class Certain:
    """Every update is certain: for a coordinator without shards that could be asked."""

    def installed(self, ordinary: bool) -> None:
        """Nothing to know."""

    def certain(self, update: Apply) -> bool:
        """Always."""
        return True

    def measured(self, largest: float) -> None:
        """Nothing to know."""
