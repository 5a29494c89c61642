"""The link under a session, for tests of what lies below a loop of turns."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import psworker
from pswire.model.rows import NO_ROWS, RowsByName
from psworker.data.payloads import Payload
from psworker.engine import Commit, Grant
from psworker.link import Link


class Stepwise(Link):
    """A link that pushes and commits in two calls, so that a test can do something between them."""

    receipts: tuple[bytes, ...] = ()

    def slot_flat(self, grant: Grant) -> list[NDArray[np.float32]]:
        """Return arrays to write a payload into, in shared memory where that is used."""
        self._contributor._require_valid(grant)
        lent = [shard.carrier.attachment for shard in self._servers.shards]
        return [
            np.empty(shard.elements, np.float32) if attachment is None else attachment.slot
            for shard, attachment in zip(self._servers.shards, lent, strict=True)
        ]

    @property
    def transport(self) -> tuple[str, ...]:
        """How payloads travel, by server."""
        return tuple(shard.carrier.kind for shard in self._servers.shards)

    def push(
        self,
        grant: Grant,
        gradients: Mapping[str, ArrayLike],
        rows: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    ) -> None:
        """Push by name; `rows`: ids and gradients by table."""
        self.push_flat(grant, self.plan.scatter_by_name(gradients), self.summed(rows or {}))

    def push_flat(self, grant: Grant, flats: Sequence[Payload], rows: RowsByName = NO_ROWS) -> None:
        self.receipts = self._contributor.push(grant, flats, rows)

    def commit(
        self,
        grant: Grant,
        *,
        samples: int,
        loss: float = math.nan,
        batch: int = 0,
        ready: bool = False,
        learning_rate: float | None = None,
        unit_ends: bool = False,
    ) -> None:
        """Make the pushed payload count."""
        self._contributor.commit(
            grant,
            Commit(grant.ticket, batch, samples, loss, learning_rate=learning_rate, unit_ends=unit_ends),
            self.receipts,
        )
        self._joined.set_rate(learning_rate)
        if ready:
            self._stream.tell(lambda engine: engine.ready())


def stepwise(link: Link) -> Stepwise:
    """Give an open link the two calls."""
    link.__class__ = Stepwise
    assert isinstance(link, Stepwise)
    return link


def connect_link(*arguments: Any, **options: Any) -> Stepwise:
    """Connect as `psworker.connect` does, and return the session's link."""
    return stepwise(psworker.connect(*arguments, **options)._link)
