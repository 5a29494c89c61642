"""How much of a version is handed to a connection at once."""

from dataclasses import dataclass
from typing import Final

from pswire.patience import ping_interval
from pswire.transport import frames

# Bytes of the first piece. Two of them may be under way: on the slowest link a ping's answer still comes in time.
FIRST: Final = 32 * 1024


@dataclass(slots=True)
class SendingPace:
    """Pieces of the payloads of one call grow while the link takes each at once, and shrink when it does not.

    A ping waits behind all that was handed to its connection before it. On a slow link a piece must therefore be
    small, or the answer to a ping comes too late and a worker that receives looks dead; on a fast one large
    pieces cost least.
    """

    worker_timeout: float
    piece: int = FIRST

    def begin(self) -> None:
        """Another payload. Its first piece is taken at once whatever the link, and doubles the next."""
        self.piece = max(FIRST, self.piece // 2)

    def sent(self, seconds: float) -> None:
        """The next piece is asked for, so long after the one before it was given."""
        # Two of them and the ping fit into half of the time that its answer is waited for.
        limit = ping_interval(self.worker_timeout) / 4
        if seconds > limit:
            self.piece = max(FIRST, self.piece // 2)
        elif seconds < limit / 2:
            self.piece = min(frames.CHUNK_BYTES, self.piece * 2)
