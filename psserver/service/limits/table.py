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
SILENT: Final = Limit(512, "calls that have said nothing yet; one more, and the oldest is cut")
CONNECTIONS: Final = Limit(16_384, "each takes a descriptor; one more is refused, and its worker uses gRPC")
UNAUTHENTICATED: Final = Limit(
    256, "connections that have not shown their token yet; one more, and the oldest is cut"
)
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
FORBEARANCE: Final = Limit(4.0, "a worker that does not read is waited for a quarter as long each time")
