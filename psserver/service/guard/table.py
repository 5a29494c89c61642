"""Limits of calls, in one table: how many there may be of each kind, and for how long. Each row says why."""

from dataclasses import dataclass
from typing import Final

from pswire.patience import CHUNK_SECONDS


@dataclass(frozen=True, slots=True)
class Limit:
    """`value`: seconds, or how many."""

    value: float
    why: str


# A worker has two: its session, and the stream that its payloads, or their socket, depend on.
CALLS: Final = Limit(32_768, "each takes some 30 kB; one more is refused at once rather than left waiting")
# The rows below are of calls and connections that a stranger can hold.
SILENT: Final = Limit(
    512,
    "calls that have said nothing yet, where memory allows that many; one more, and the oldest is cut of the address "
    "that has the most",
)
FOREIGN: Final = Limit(
    64, "calls of gRPC's own services (health, reflection); one more, and the oldest is cut, chosen so, too"
)
STRANGERS_SHARE: Final = Limit(
    1 / 8, "of --memory-limit, for first messages that are under way: each silent call may hold a whole one"
)
NAMES_SHARE: Final = Limit(
    1 / 16, "of --memory-limit, for what is kept of every name that ever joined: it is kept to the job's end"
)
LENT_SHARE: Final = Limit(
    1 / 8,
    "of what the model leaves, for versions that were taken back and are read still: few reads are so slow",
)
MEMBER_CALLS: Final = Limit(
    8,
    "payload calls of one member, where memory allows that many: two are in use, others are left of broken ones",
)
FEWEST_SILENT: Final = Limit(
    16, "silent calls, however little memory there is: workers join at the same moment"
)
FEWEST_MEMBER_CALLS: Final = Limit(4, "payload calls of one member, however little memory there is")
ANSWERS: Final = Limit(64, "answers of some size that no member asked for and nobody has read yet")
CONNECTIONS: Final = Limit(16_384, "each takes a descriptor; one more is refused, and its worker uses gRPC")
UNAUTHENTICATED: Final = Limit(
    256,
    "connections that have not shown their token yet; one more, and the oldest is cut of the address that has the most",
)
UNAUTHENTICATED_OF_ONE: Final = Limit(
    128, "the same, of one address: half of the room is left for others, whatever one of them does"
)
METRICS_CONNECTIONS: Final = Limit(
    16, "connections to the metrics port: each costs a thread; one more is closed at once"
)
METRICS_OF_ONE: Final = Limit(8, "the same, of one address: a Prometheus elsewhere finds room")
FIRST_MESSAGE: Final = Limit(
    10.0 + CHUNK_SECONDS, "seconds until a call has said something: it may bring a chunk"
)
AWAITING: Final = Limit(
    4096, "calls that wait for the log; of more, the one that wants what is farthest off is refused"
)
UNGRANTED: Final = Limit(
    4, "reads of a version that no ticket has pinned; each may keep a buffer from an update"
)
READS: Final = Limit(
    4, "reads of one worker at once: the present version, the next one, and what broke and is read again"
)
# How much shorter the next unread grant of the same worker may hold up an update.
LEASE_DIVISOR: Final = Limit(4.0, "a worker that does not read is waited for a quarter as long each time")
