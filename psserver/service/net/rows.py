"""Rows of tables on their way: received behind the payload of a push, read and sent behind a version."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from psserver.service.errors import aborted, exhausted, invalid
from psserver.service.guard.memory import MORE_ROOM
from psserver.service.net.streams import RequestChunks
from psserver.service.store.host import ShardHost
from psserver.shard import Shard
from psserver.shard.staging import Slot
from pswire.model.rows import Rows, WantedRows, keys_of
from pswire.transport import frames
from pswire.transport.codecs import Array, Codec, Elementwise
from pswire.transport.framed_socket import Parts
from pswire.transport.rows import RowFormat, row_codec
from pswire.v1 import shard_pb2

# Bytes of a row's place in slots, masks and what the search remembers.
_READING_BYTES = 64


@dataclass(slots=True)
class RowsBehind:
    """Rows that arrive behind a payload."""

    host: ShardHost
    shard: Shard
    format: RowFormat

    @classmethod
    def of_push(
        cls, host: ShardHost, shard: Shard, header: shard_pb2.PushHeader, codec: Codec
    ) -> "RowsBehind | None":
        """Return what follows a push, or None. Raises Refused for numbers that fit no table."""
        return cls._checked(host, shard, codec, header.rows, header.next_rows)

    @classmethod
    def of_pull(
        cls, host: ShardHost, shard: Shard, pull: shard_pb2.PullRequest, codec: Codec
    ) -> "RowsBehind | None":
        """Return the keys that follow a pull, or None. Raises Refused for numbers that fit no table."""
        return cls._checked(host, shard, codec, (), pull.rows)

    @classmethod
    def _checked(
        cls,
        host: ShardHost,
        shard: Shard,
        codec: Codec,
        counts: Sequence[int],
        ahead: Sequence[int],
    ) -> "RowsBehind | None":
        if not counts and not ahead:
            return None
        tables = tuple(table.spec for table in shard.tables.tables)
        format = RowFormat(tables, row_codec(codec), tuple(counts), tuple(ahead))
        wrong = format.wrong()
        if wrong is not None:
            raise invalid(wrong)
        return cls(host, shard, format)

    async def receive(self, chunks: RequestChunks) -> tuple[Rows, WantedRows]:
        """Return rows and wanted keys, checked. Raises Refused."""
        total, memory = self.format.nbytes, self.host.memory
        refusal = memory.take(total)
        if refusal is not None:
            raise exhausted(f"no memory for rows: {refusal}; {MORE_ROOM}")
        try:
            # The system gives its memory as bytes arrive, not as they are announced.
            data = np.empty(total, np.uint8).data
            received = 0
            while received < total:
                chunk = await chunks.next()
                if not 0 < chunk.nbytes <= total - received:
                    raise invalid(
                        f"rows of a message: expected a chunk of 1 to {total - received} bytes, got {chunk.nbytes}"
                    )
                data[received : received + chunk.nbytes] = chunk
                received += chunk.nbytes
            return await self.host.runtime.passes.run(total, lambda: self._decoded(data))
        finally:
            memory.give(total)

    def _decoded(self, data: memoryview) -> tuple[Rows, WantedRows]:
        rows, ahead = self.format.decode(data)
        tables = self.shard.tables
        wrong = tables.wrong(keys_of(rows)) or tables.wrong(ahead)
        if wrong is not None:
            raise invalid(f"rows of a message: {wrong}")
        return rows, ahead

    def stage(self, rows: Rows, slot: Slot) -> None:
        """Measure rows of gradients, and put them beside the payload in its slot. Raises Refused."""
        squares = self.shard.checks.measure_rows(rows)
        if squares is None:
            raise invalid(f"payload of ticket {slot.ticket}: expected finite numbers in rows of gradients")
        refusal = self.host.memory.refuses_rows(rows)
        if refusal is not None:
            raise exhausted(refusal)
        slot.rows, slot.squares = rows, slot.squares + squares


@dataclass(slots=True)
class RowsAhead:
    """Rows to be sent behind a version; call `end` when they are sent or given up.

    `version`: 0 unless they were read without a ticket.
    """

    arrays: list[Array]
    version: int
    # Gives their memory back.
    end: Callable[[], None]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def messages(self) -> Iterator[Parts]:
        """Yield messages with the rows."""
        for array in self.arrays:
            for data in frames.chunks(array):
                yield tuple(frames.chunk_field(data))


async def read_rows(
    host: ShardHost,
    shard: Shard,
    worker: str,
    codec: Elementwise,
    wanted: WantedRows,
    ticket: int,
    version: int,
) -> RowsAhead:
    """Read rows for `worker` at a version that the ticket holds, which ends its hold on them.

    Without a ticket: at the newest version. Raises Refused: ABORTED if the version is gone, RESOURCE_EXHAUSTED
    without memory, because a few keys can ask for rows a thousand times as large.
    """
    tables = tuple(table.spec for table in shard.tables.tables)
    format = RowFormat(tables, codec, tuple(keys.size for keys in wanted))
    nbytes = reading_bytes(format)
    refusal = host.memory.take(nbytes)
    if refusal is not None:
        raise exhausted(f"no memory for rows: {refusal}; {MORE_ROOM}")
    given = partial(host.memory.give, nbytes)
    try:
        return RowsAhead(*await _read(host, shard, format, wanted, ticket, version), given)
    except BaseException:
        given()
        raise


def reading_bytes(form: RowFormat) -> int:
    """Return the bytes that reading rows takes: as they are found, as they were if they have changed since, with
    their places and keys, and as they are sent."""
    elements = sum(n * table.dim for n, table in zip(form.counts, form.tables, strict=bool(form.counts)))
    return 2 * 4 * elements + _READING_BYTES * sum(form.counts) + form.answer_nbytes


async def _read(
    host: ShardHost,
    shard: Shard,
    format: RowFormat,
    wanted: WantedRows,
    ticket: int,
    version: int,
) -> tuple[list[Array], int]:
    """Return rows as they travel, and their version if it was not asked for."""
    at = version if ticket else max(shard.version, 0)
    if not ticket:
        shard.tables.hold(at)
    try:
        read = partial(_encoded, shard, format, wanted, at)
        arrays = await host.runtime.passes.run(format.answer_nbytes, read)
    except ValueError as error:
        raise aborted(f"rows of version {at} are gone ({error}): ask for a new grant") from error
    finally:
        if ticket:
            shard.row_holds.has_read(ticket)
        else:
            shard.tables.release(at)
    return arrays, 0 if ticket else at


def _encoded(shard: Shard, format: RowFormat, wanted: WantedRows, version: int) -> list[Array]:
    """Read rows, in any thread. Raises ValueError if the version is gone."""
    return format.encode_answer(shard.read_rows(wanted, version))
