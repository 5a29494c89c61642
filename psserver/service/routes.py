"""Where the coordinator's outputs go: the run log, the shards of all servers, the sessions of workers."""

import logging
import time

from psserver.coordinator import Output, Record, Tell, entries
from psserver.coordinator.entries import Entry
from psserver.order_translation import OrderTranslator
from psserver.service.executor import Executor
from psserver.service.followers import Follower
from psserver.service.outbox import Outboxes
from psserver.service.run_log import RunLog
from psserver.shard import Order

log = logging.getLogger("ps-server")


class Routes:
    """Delivers outputs in their order. The job's lock owns it, with the outboxes and the run log.

    `orders`: executes this server's; `grace`: seconds that a lost worker has to come back, for the log's sentence.
    """

    def __init__(self, run_log: RunLog, orders: Executor, grace: float) -> None:
        self.run_log = run_log
        self.outboxes = Outboxes()
        # Complete before the first output.
        self.followers: list[Follower] = []
        # In seconds of the monotonic clock.
        self.first_grant: float | None = None
        self.stopped_at: float | None = None
        self._orders = orders
        self._grace = grace
        self._translator = OrderTranslator()

    def deliver(self, outputs: list[Output]) -> None:
        orders: list[tuple[int, Order]] = []
        for output in outputs:
            match output:
                case Record(index, _, entry):
                    self.run_log.append(output)
                    orders.append((index, self._translator.order(entry)))
                    self._remark(entry)
                case Tell(worker, incarnation, notice):
                    self.outboxes.post(worker, incarnation, notice)
        if orders:
            self._orders.submit(orders)
            for follower in self.followers:
                follower.send(orders)

    def _remark(self, entry: Entry) -> None:
        """What the summary needs to know, and what a reader of the server's log wants to."""
        match entry:
            case entries.Grant():
                self.first_grant = self.first_grant or time.monotonic()
            case entries.Stop():
                self.stopped_at = time.monotonic()
            case entries.Lost(worker):
                log.warning("%s: its connection is lost; it has %.1f s to come back", worker, self._grace)
            case entries.Back(worker):
                log.info("%s is back", worker)
            case entries.Leave(worker, reason):
                log.info("%s left: %s", worker, reason)
            case entries.Done(worker):
                log.info("%s has no more data", worker)
