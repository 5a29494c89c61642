"""Orders to a shard: the entries of the decision log, as far as they concern arrays."""

from typing import Final

from pswire.values import value


@value
class Hold:
    """A ticket was granted: its worker will read `version` and may push.

    `turn`: its place in the round's order of summation; None if payloads are summed as they are committed.
    `initialise`: its payload is version 0.
    """

    ticket: int
    version: int
    turn: int | None = None
    initialise: bool = False
    worker: str = ""


@value
class Install:
    """The ticket's payload is version 0."""

    ticket: int


@value
class Seal:
    """The ticket is committed: its payload is final."""

    ticket: int


@value
class Fold:
    """sum += factor * payload; `compensation` is the compensator's strength, 0 for none."""

    ticket: int
    factor: float
    compensation: float = 0.0


@value
class Apply:
    """Make `version` from scale * sum; `parts` lists contributions that are not in the sum yet."""

    version: int
    scale: float
    lr_scale: float
    parts: tuple[Fold, ...] = ()


@value
class Discard:
    """The coming update is not made: drop what was summed for it. Nothing else changes."""


@value
class Release:
    """The ticket is over without a contribution."""

    ticket: int


@value
class Admit:
    """`worker` is a member, in this incarnation."""

    worker: str
    incarnation: int


@value
class Dismiss:
    """`worker` is no member any more."""

    worker: str


@value
class Save:
    """The shard's state after this order belongs to the checkpoint of `version`."""

    version: int


@value
class Note:
    """Nothing changes on a shard."""


NOTE: Final = Note()

# Orders that write to arrays that a state shows, or give these away: see `Shard.views`.
Writing = Install | Fold | Apply | Discard | Release
Order = Hold | Install | Seal | Fold | Apply | Discard | Release | Admit | Dismiss | Save | Note
"""What a shard executes, in the order of the log."""
