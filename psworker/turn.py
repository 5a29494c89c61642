"""A worker's turns: a ticket with the version that it grants, and the contribution that is made of both.

Every training loop takes turns. Here, and nowhere else, a cancelled ticket is given back, a contribution that is not
finite is left out and counted, a batch gets its number, a changed learning rate is sent, and fates are counted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pswire.logs.events import event
from pswire.model.rows import NO_ROWS, KeysByName, RowsByName
from psworker.data.payloads import Payload
from psworker.engine import Grant
from psworker.errors import Diverged, PayloadRefused, Voided
from psworker.link import Link
from psworker.local import NONFINITE_LIMIT

log = logging.getLogger("ps-worker")


class FateCounts:
    """How many contributions had each fate, and the staleness of those that were applied."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._staleness = 0

    def take(self, link: Link) -> dict[str, int]:
        """Count what the servers have reported since the last call. Return the counts by fate."""
        for disposition in link.dispositions():
            if disposition.fate == "applied" and not disposition.version:
                continue  # the initial values, which the first worker gives
            self.counts[disposition.fate] = self.counts.get(disposition.fate, 0) + 1
            if disposition.fate == "applied":
                self._staleness += disposition.staleness
        return self.counts

    @property
    def staleness(self) -> float:
        """The mean over the applied contributions, in versions."""
        applied = self.counts.get("applied", 0)
        return self._staleness / applied if applied else 0.0


class Turns:
    """One worker's turns. Not thread-safe.

    `batch`: the number of the next batch. `bad`: contributions in a row that were not finite. `rate`: the learning rate
    that the servers have, as far as this loop has set it.
    """

    def __init__(
        self,
        link: Link,
        put: Callable[[Sequence[NDArray[Any]], Grant], object] | None = None,
        *,
        rate: float | None = None,
        counts: FateCounts | None = None,
        unit: str = "batches",
    ) -> None:
        """`put`: takes the version of each turn, one array per server, float32 or the wire dtype, valid during the
        call. `unit`: what a contribution is made of, for the error when too many are not finite."""
        self.link = link
        self.batch, self.bad, self.rate = link.info.next_batch, 0, rate
        # Whether this loop has set a rate.
        self.has_set, self._membership = False, link.info.membership
        self._put, self._counts, self._unit = put, counts or FateCounts(), unit

    def next(self) -> Turn | None:
        """Wait for a ticket, and give its version to `put`. None: the job is over. Raises as `Link.ready`."""
        # The link keeps the newest few thousand fates only.
        self._counts.take(self.link)
        while (grant := self.link.ready()) is not None:
            turn = Turn(self, grant)
            if self._put is None or turn.put():
                return turn
        return None

    @property
    def fates(self) -> dict[str, int]:
        """How many contributions had each fate so far."""
        return self._counts.take(self.link)

    def look_for_rate(self) -> None:
        """Learn whether servers that went back have lost a rate that this loop has set, so that it is sent again."""
        info = self.link.info
        if info.membership != self._membership:
            self._membership, present = info.membership, info.learning_rate
            if self.has_set and present is not None and np.float32(present) != np.float32(self.rate or 0.0):
                self.rate = present

    def skip(self, named: str, why: object) -> None:
        """Leave out what is not finite. Raises Diverged for the tenth in a row."""
        log.warning("%s skipped: %s", named, why, extra=event("batch_skipped"))
        self.bad += 1
        if self.bad >= NONFINITE_LIMIT:
            raise Diverged(
                f"{self.bad} {self._unit} in a row gave no finite gradient: lower the learning rate, or look for a "
                "division by zero or log(0) in the loss"
            )


class Turn:
    """One ticket. `grant`: the ticket and the number of its version. `void`: it was cancelled, and is given back.

    Within `with turn:` a cancelled ticket ends the block instead of raising Voided.
    """

    __slots__ = ("_turns", "grant", "void")

    def __init__(self, turns: Turns, grant: Grant) -> None:
        self._turns, self.grant, self.void = turns, grant, False

    def put(self) -> bool:
        """Give the version to the loop's `put`, again if it had it before. False: the turn is void."""
        turns = self._turns
        assert turns._put is not None
        with self, turns.link.view_flat(self.grant, narrow=True) as flats:
            turns._put(flats, self.grant)
        return not self.void

    def send(
        self,
        payloads: Sequence[Payload],
        *,
        samples: int,
        loss: float = math.nan,
        norm: float = 0.0,
        rate: float | None = None,
        batch: int | None = None,
        named: str = "",
        ready: bool = True,
        unit_ends: bool = False,
        rows: RowsByName = NO_ROWS,
        ahead: KeysByName = NO_ROWS,
    ) -> bool:
        """Contribute one payload per server, and end the turn. False: it was cancelled, or is not finite.

        `norm`: of the gradient, where it is known to be finite or not. `rate`: the present learning rate, if this
        worker sets it. `batch`: the number of its last batch, by default that of the next batch; `named`: in words.
        `ready`: ask for the next ticket. `unit_ends`, `rows`, `ahead`: as of `Link.contribute`. Raises Diverged,
        and as `Link.contribute`.
        """
        turns = self._turns
        number = turns.batch if batch is None else batch
        turns.batch = number + 1
        turns.look_for_rate()
        changed = None if rate is None or rate == turns.rate else rate
        sent = False
        with self:
            try:
                if not math.isfinite(norm):
                    raise PayloadRefused(f"the gradient's norm is {norm} (loss {loss})")
                turns.link.contribute(
                    self.grant,
                    payloads,
                    samples=samples,
                    loss=loss,
                    batch=number,
                    ready=ready,
                    learning_rate=changed,
                    unit_ends=unit_ends,
                    rows=rows,
                    ahead=ahead,
                )
                sent = True
            except PayloadRefused as refusal:
                turns.link.abandon(self.grant, "nonfinite")
                turns.skip(named or f"batch {number} is", refusal)
        if sent:
            turns.bad = 0
            if changed is not None:
                turns.rate, turns.has_set = changed, True
        return sent

    def send_nothing(self) -> None:
        """Contribute zeros of no samples, because others wait for this worker, which has no batch for them."""
        turns = self._turns
        with self:
            # Not a batch of this worker's data: the number of its next one stays.
            batch = max(0, turns.batch - 1)
            flats = turns.link.plan.scatter_by_name({})
            turns.link.contribute(self.grant, flats, samples=0, batch=batch, ready=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Voided):
            return False
        log.info("%s", error, extra=event("contribution_void"))
        self._turns.link.abandon(self.grant, "cancelled")
        self.void = True
        return True
