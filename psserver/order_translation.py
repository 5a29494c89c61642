"""From an entry of the decision log to the order that a shard executes."""

from psserver.coordinator import entries
from psserver.shard import orders


class OrderTranslator:
    """Translates entries in log order; remembers which parts the shards have summed already."""

    def __init__(self) -> None:
        self._folded: set[int] = set()

    def order(self, entry: entries.Entry) -> orders.Order:
        match entry:
            case entries.Initialise(worker, ticket):
                return orders.Pin(ticket, 0, initialise=True, worker=worker)
            case entries.Install(_, ticket):
                return orders.Install(ticket)
            case entries.Grant(worker, ticket, version, turn):
                return orders.Pin(ticket, version, turn, worker=worker)
            case entries.Commit(_, ticket):
                return orders.Seal(ticket)
            case entries.Fold(ticket, factor, compensation):
                self._folded.add(ticket)
                return orders.Fold(ticket, factor, compensation or 0.0)
            case entries.Apply(version, scale, lr_scale, parts):
                late = tuple(
                    orders.Fold(p.ticket, p.factor, p.compensation or 0.0)
                    for p in parts
                    if p.ticket not in self._folded
                )
                self._folded.clear()
                return orders.Apply(version, scale, lr_scale, late)
            case entries.Drop(_, ticket) | entries.Cancel(_, ticket) | entries.Abandon(_, ticket):
                return orders.Release(ticket)
        return orders.Note()
