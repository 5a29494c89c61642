"""Rows of sparse tables on the wire, behind the payload of a push, a pull or a version.

Keys come first, 8 bytes each, so that numbers of 8 bytes lie at multiples of 8; then rows, in the payload's codec if
that is elementwise, else as float32. Tables are in the order of the plan; a message without rows names no table at all.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from pswire.model.adjacent import Cut, cut, joined
from pswire.model.rows import CutRows, Rows, WantedRows, values_of
from pswire.model.tables import Floats, Keys, TableSpec
from pswire.transport.codecs import FLOAT32, Array, Codec, ElementDecoder, Elementwise
from pswire.values import value

_KEY = np.dtype("<u8")
_NOTHING: Floats = np.zeros(0, np.float32)


def row_codec(codec: Codec) -> Elementwise:
    """Return the codec of rows beside a payload in `codec`: rows share no scales."""
    return codec if isinstance(codec, Elementwise) else FLOAT32


def counts_of(keys: Iterable[Keys]) -> list[int]:
    """Return the number of rows of each table; empty if there are none."""
    counts = [each.size for each in keys]
    return counts if any(counts) else []


@value
class RowFormat:
    """The bytes of rows behind one payload. `counts`: rows that are there; `ahead`: rows of which only keys are there.

    Both name all tables, or none.
    """

    tables: Sequence[TableSpec]
    codec: Elementwise
    counts: Sequence[int] = ()
    ahead: Sequence[int] = ()

    def wrong(self) -> str | None:
        """Say why these numbers do not fit the tables; None if they do."""
        for counts in (self.counts, self.ahead):
            if counts and len(counts) != len(self.tables):
                return f"expected the numbers of rows of {len(self.tables)} tables, got {len(counts)}"
        return None

    @property
    def keys(self) -> int:
        """The number of all keys."""
        return sum(self.counts) + sum(self.ahead)

    @property
    def answer_nbytes(self) -> int:
        """The bytes of rows alone, as they are sent to somebody who knows the keys."""
        return self.codec.itemsize * sum(
            n * table.dim for n, table in zip(self.counts, self.tables, strict=bool(self.counts))
        )

    @property
    def nbytes(self) -> int:
        """The bytes of keys and rows."""
        return 8 * self.keys + self.answer_nbytes

    def encode(self, rows: Rows, ahead: WantedRows) -> list[Array]:
        """Return arrays whose memory, one after another, is what travels: few, for each is a message."""
        keys = [each for each, _ in rows if each.size] + [each for each in ahead if each.size]
        if not keys:
            return []
        return [np.concatenate(keys).astype(_KEY, copy=False), *self.encode_answer(values_of(rows))]

    def encode_answer(self, rows: Sequence[Floats]) -> list[Array]:
        """Return arrays whose memory, one after another, is the rows."""
        whole = joined(rows) if rows else _NOTHING
        return [self.codec.encode(whole)] if whole.size else []

    def decode(self, data: memoryview) -> tuple[Rows, WantedRows]:
        """Read what `encode` returned, `nbytes` long. The keys are not checked. The arrays may be parts of `data`."""
        whole: Keys = np.frombuffer(data[: 8 * self.keys], _KEY).astype(np.uint64, copy=False)
        own = sum(self.counts)
        rows = self.decode_answer(data[8 * self.keys :])
        return CutRows.of(cut(whole[:own], self.counts), rows), cut(whole[own:], self.ahead)

    def decode_answer(self, data: memoryview) -> Cut:
        """Read what `encode_answer` returned. The arrays are parts of one, perhaps of `data`."""
        sizes = [n * table.dim for n, table in zip(self.counts, self.tables, strict=bool(self.counts))]
        if self.codec.exact:
            whole = np.frombuffer(data, np.dtype("<f4")).astype(np.float32, copy=False)
        else:
            whole = np.empty(sum(sizes), np.float32)
            ElementDecoder(self.codec, whole).feed(data)
        parts = zip(cut(whole, sizes), self.counts, self.tables, strict=bool(self.counts))
        return Cut.of(whole, (part.reshape(count, table.dim) for part, count, table in parts))
