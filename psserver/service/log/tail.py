"""The newest entries of the decision log, for those who look on."""

from collections import deque
from collections.abc import Sequence
from itertools import islice

from psserver.coordinator.outputs import Record
from pswire.decisions.records import line_of

# Entries that are remembered, and those that one reply has at most.
REMEMBERED, MOST = 8192, 1000
# Entries that are looked at for the size of all, and what an entry takes beside its line: bytes for each of that.
SAMPLE, OBJECTS = 16, 4


class LogTail:
    """The loop's thread owns it. Costs an append per entry; nothing is written out before somebody asks."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._records: deque[Record] = deque(maxlen=remembered)

    def append(self, record: Record) -> None:
        self._records.append(record)

    def since(self, first: int, most: int = MOST) -> list[Record]:
        """Entries from number `first` on, or from the oldest one that is remembered."""
        if not self._records:
            return []
        skipped = max(first - self._records[0].index, 0)
        return list(islice(self._records, skipped, skipped + most))

    @property
    def nbytes(self) -> int:
        """Of memory, about: of a few entries, taken for all."""
        count = len(self._records)
        if not count:
            return 0
        few = [self._records[count * part // SAMPLE] for part in range(SAMPLE)]
        return OBJECTS * count * sum(map(len, lines(few))) // SAMPLE


def lines(records: Sequence[Record]) -> list[str]:
    """As in decisions.jsonl."""
    return [line_of(record.index, record.t, record.entry) for record in records]
