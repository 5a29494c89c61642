"""Messages of servers about a log, inputs that the shell gives a replica, and outputs that a replica asks of the shell.

The shell sends the job's generation with every message, and drops those of another one. Ours are of one generation.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from psserver.replication.configuration import Config, StableMemory, SyncMember

#: What names an item of a log: a ticket's payload, or an input of the coordinator. Its bytes are the shell's.
Item = Hashable

#: Most items of one message.
BATCH: Final = 256

# Messages: a change of the configuration.


@dataclass(frozen=True, slots=True)
class Prepare:
    """A candidate asks for the promise to refuse all epochs below `epoch`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise, with the newest configuration that its sender has accepted."""

    epoch: int
    config: Config


@dataclass(frozen=True, slots=True)
class Sync:
    """The candidate's log from item `first` on, which the receiver's becomes. The first `stable` items are stable."""

    epoch: int
    first: int
    items: tuple[Item, ...]
    stable: int


@dataclass(frozen=True, slots=True)
class Synced:
    """The receiver's log is the candidate's."""

    epoch: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Propose:
    """A candidate asks to accept a configuration, all members of which are in sync already."""

    config: Config


@dataclass(frozen=True, slots=True)
class Accepted:
    """The configuration of this epoch is on the sender's disk."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The sender has promised a higher epoch."""

    promised: int


# Messages: the log.


@dataclass(frozen=True, slots=True)
class Append:
    """The primary's items from `start` on, and how many are stable; without items, a heartbeat."""

    config: Config
    start: int
    items: tuple[Item, ...]
    stable: int


@dataclass(frozen=True, slots=True)
class Held:
    """The sender's log has `end` items and it has executed `executed`. From a learner this acknowledges nothing."""

    epoch: int
    incarnation: int
    end: int
    executed: int


@dataclass(frozen=True, slots=True)
class Expel:
    """The receiver's copy differs from the primary's: it counts no more."""

    epoch: int
    incarnation: int


Message = Prepare | Promise | Sync | Synced | Propose | Accepted | Refuse | Append | Held | Expel


def merged(before: "Message", after: "Message") -> "Message | None":
    """Return a message that says what two of one server say, `after` behind `before`; None if there is none."""
    if isinstance(before, Append) and isinstance(after, Append):
        follows = before.config == after.config and before.start + len(before.items) == after.start
        if follows and len(before.items) + len(after.items) <= BATCH:
            return Append(before.config, before.start, before.items + after.items, after.stable)
    if isinstance(before, Held) and isinstance(after, Held):
        same = (before.epoch, before.incarnation) == (after.epoch, after.incarnation)
        if same and before.end <= after.end and before.executed <= after.executed:
            return after
    return None


# Inputs from the shell.


@dataclass(frozen=True, slots=True)
class Receive:
    """A message of another server."""

    sender: int
    message: Message


@dataclass(frozen=True, slots=True)
class Offer:
    """Something for the primary's log: a payload that is complete, or an input of the coordinator."""

    item: Item


@dataclass(frozen=True, slots=True)
class Executed:
    """The first `count` items are executed."""

    count: int


@dataclass(frozen=True, slots=True)
class Stand:
    """Change the configuration to this server as primary, with the copies `include`.

    `above`: an epoch that the new one must exceed. `operator`: a person's vote, instead of a majority's.
    """

    include: tuple[int, ...] = ()
    above: int = 0
    operator: bool = False


@dataclass(frozen=True, slots=True)
class Beat:
    """Send again what was not answered, and the primary's heartbeat."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A copy of a primary that had executed `at` items has replaced this server's."""

    at: int


@dataclass(frozen=True, slots=True)
class Broke:
    """The stream from a learner broke, and with it a copy that was under way: it begins anew."""

    server: int


@dataclass(frozen=True, slots=True)
class Differs:
    """This member's digest of a version is not the primary's."""

    member: SyncMember


Input = Receive | Offer | Executed | Stand | Beat | Installed | Broke | Differs

# Outputs, to be carried out in order: what follows a Persist must wait until that is on the disk.


@dataclass(frozen=True, slots=True)
class Persist:
    """Write this to the disk and wait for it. If that fails, the server ends and nothing further is carried out."""

    disk: StableMemory


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a server. It may be lost."""

    to: int
    message: Message


@dataclass(frozen=True, slots=True)
class Execute:
    """The first `upto` items are stable: execute them. The primary gives receipts for them, and answers."""

    upto: int


@dataclass(frozen=True, slots=True)
class Activate:
    """This server is the primary now."""

    config: Config


@dataclass(frozen=True, slots=True)
class StepDown:
    """This server is the primary no more: `epoch` is another's."""

    epoch: int


@dataclass(frozen=True, slots=True)
class GiveCopy:
    """Send a learner a copy of everything as it is now, after the items executed so far."""

    to: int
    at: int


@dataclass(frozen=True, slots=True)
class Reset:
    """This copy is void: begin again as a learner, in another incarnation."""


Output = Persist | Send | Execute | Activate | StepDown | GiveCopy | Reset
