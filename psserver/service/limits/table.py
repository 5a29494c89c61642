"""Limits of calls, in one table: how many there may be of each kind, and for how long. Each row says why."""

from dataclasses import dataclass
from typing import Final

from pswire.patience import CHUNK_SECONDS


@dataclass(frozen=True, slots=True)
class Limit:
    """`value`: seconds, or how many."""

    value: float
    why: str


# Threads are made as calls need them: a session keeps one, a push or pull one while it lasts.
CALLS: Final = Limit(1024, "each takes a thread; one more is refused at once rather than left waiting")
# The rows below are of calls that a stranger can hold. Together they leave most of CALLS to members, Join and Status.
SILENT: Final = Limit(64, "calls that have said nothing yet; one more, and the oldest is cut")
FIRST_MESSAGE: Final = Limit(
    10.0 + CHUNK_SECONDS, "seconds until a call has said something: it may bring a chunk"
)
AWAITING: Final = Limit(
    256, "calls that wait for the log; of more, the one that wants what is farthest off is refused"
)
UNGRANTED: Final = Limit(
    4, "reads of a version that no ticket has pinned; each may keep a buffer from an update"
)
READS: Final = Limit(
    4, "reads of one worker at once: the present version, the next one, and what broke and is read again"
)
# A call that no thread takes for so long, while the system gives no more threads: the server is deaf.
DEAF: Final = Limit(10.0, "seconds that a call waits for a thread that cannot be started")
# How much shorter the next unread grant of the same worker may hold up an update.
FORBEARANCE: Final = Limit(4.0, "a worker that does not read is waited for a quarter as long each time")
