"""From an entry of the decision log to the order that a shard executes."""

from collections.abc import Iterable
from typing import assert_never

from psserver.coordinator import entries
from psserver.shard import orders


class OrderTranslator:
    """Translates entries in log order; remembers which parts the shards have summed already.

    `folded`: tickets that were folded since the last apply, for a log that is taken up in the middle
    (`Coordinator.folded` has them at any moment).
    """

    def __init__(self, folded: Iterable[int] = ()) -> None:
        self._folded = set(folded)

    @property
    def folded(self) -> frozenset[int]:
        """Tickets that were folded since the last apply."""
        return frozenset(self._folded)

    def order(self, entry: entries.Entry) -> orders.Order:
        """Every kind of entry has an order, if only a Note. Raises AssertionError for what is no entry of the log."""
        match entry:
            # Those of every step come first, and are not taken apart by the pattern, which takes longer.
            case entries.Commit():
                return orders.Seal(entry.ticket)
            case entries.Apply():
                return self._apply(entry)
            case entries.Grant():
                return orders.Pin(entry.ticket, entry.version, entry.turn, worker=entry.worker)
            case entries.Refuse():
                self._folded.clear()
                return orders.Discard()
            case entries.Fold(ticket, factor, compensation):
                self._folded.add(ticket)
                return orders.Fold(ticket, factor, compensation or 0.0)
            case entries.Initialise(worker, ticket):
                return orders.Pin(ticket, 0, initialise=True, worker=worker)
            case entries.Install(_, ticket):
                return orders.Install(ticket)
            case entries.Drop(_, ticket) | entries.Cancel(_, ticket) | entries.Abandon(_, ticket):
                return orders.Release(ticket)
            case entries.Job() | entries.Start():
                return orders.Note()
            case entries.Stop():
                # All that was pending was dropped right before, summed or not.
                self._folded.clear()
                return orders.Note()
            case entries.Checkpoint(version):
                return orders.Save(version)
            case entries.Restore():
                # A sum that a stop has left behind is of contributions that were dropped.
                return orders.Note() if self._folded else orders.Discard()
            case entries.Join(worker, incarnation):
                return orders.Admit(worker, incarnation)
            case entries.Leave(worker, kept=kept):
                # Its tickets have entries of their own.
                return orders.Dismiss(worker, bool(kept))
            # The applies that follow say what a rate means.
            case entries.Rate() | entries.Work() | entries.Resume():
                return orders.Note()
            case entries.Lost() | entries.Back() | entries.Done():
                return orders.Note()
            case _:
                assert_never(entry)

    def trial(self, update: entries.Apply) -> orders.Apply:
        """The order that this update would be, behind the entries so far."""
        return self._update(update)

    def _apply(self, apply: entries.Apply) -> orders.Apply:
        order = self._update(apply)
        self._folded.clear()
        return order

    def _update(self, apply: entries.Apply) -> orders.Apply:
        late = tuple(
            orders.Fold(p.ticket, p.factor, p.compensation or 0.0)
            for p in apply.parts
            if p.ticket not in self._folded
        )
        return orders.Apply(apply.version, apply.scale, apply.lr_scale, late)
