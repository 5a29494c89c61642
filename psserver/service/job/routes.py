"""Where the coordinator's outputs go: the run log, the shards of all servers, the sessions of workers."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from psserver.coordinator import Output, Record, Send
from psserver.coordinator.roster import named
from psserver.decisions import entries
from psserver.decisions.entries import Entry
from psserver.decisions.records import declared, line_of
from psserver.service.job.follower import Follower
from psserver.service.job.outbox import Outboxes
from psserver.service.job.run_log import RunLog
from psserver.service.store.executor import Executor
from psserver.shard import Order
from pswire import protocol
from pswire.logs.events import event

log = logging.getLogger("ps-server")

# Entries of every step. They are not remarked, except for the time of the first grant.
_OF_EVERY_STEP = frozenset((entries.Grant, entries.Commit, entries.Apply, entries.Fold))


class Written(NamedTuple):
    """The work that is left for the outputs of one input, once the log has its entries. `remarkable`: entries for the
    summary or the server's own log."""

    orders: list[tuple[int, Order]]
    notices: list[Send]
    remarkable: list[Entry]


class Routes:
    """Writes outputs, then sends them, in order. The loop's thread owns it, with the outboxes and the run log.

    `orders` executes this server's orders. `grace`: seconds that a lost worker has to come back, for the log's
    sentence. `now`: the job's clock.
    """

    def __init__(
        self,
        run_log: RunLog,
        orders: Executor,
        grace: float,
        now: Callable[[], float],
    ) -> None:
        self.run_log = run_log
        self.tail = LogTail()
        self.outboxes = Outboxes()
        # Complete before the first output.
        self.followers: list[Follower] = []
        # Number of log entries sent to shards, and the version that they make.
        self.sent = self.version = 0
        # Seconds of the job's clock.
        self.first_grant: float | None = None
        self.stopped_at: float | None = None
        self._orders = orders
        self._grace, self._now = grace, now
        self._folded: set[int] = set()
        # How many versions had elements kept back.
        self._kept_back = 0

    def go_on(self, entries: int, version: int, folded: Sequence[int], first_grant: float | None) -> None:
        """Continue a log that has that many entries, which make that version. `folded` is in the shards' open sum."""
        self.sent, self.version, self.first_grant = entries, version, first_grant
        self._folded = set(folded)

    def write(self, outputs: list[Output]) -> Written:
        """Write the entries among `outputs` to the run log. Raises LogError."""
        written = Written([], [], [])
        for output in outputs:
            if isinstance(output, Record):
                entry = output.entry
                written.orders.append((output.index, entry.order(self._folded)))
                self.run_log.append(output)
                self.tail.append(output)
                if type(entry) not in _OF_EVERY_STEP or self.first_grant is None:
                    written.remarkable.append(entry)
            elif isinstance(output, Send):
                written.notices.append(output)
        return written

    def send(self, written: Written, version: int) -> None:
        """Send what was written to the shards, then to the workers. `version`: the coordinator's newest."""
        orders = written.orders
        if orders:
            self._orders.submit(orders)
            for follower in self.followers:
                follower.send(orders)
            self.sent, self.version = orders[-1][0] + 1, version
        for each in written.notices:
            self.outboxes.post(each.worker, each.incarnation, each.notice)
        for entry in written.remarkable:
            self.remark(entry)

    def stop_notice(self, reason: str) -> protocol.Stop:
        """Return the stop of a failed job, with the last version that shards were ordered to make."""
        return protocol.Stop(reason, self.version, False, self.sent)

    def remark(self, entry: Entry) -> None:
        """Record what the summary needs, and log what a reader of the server's log wants to know."""
        match entry:
            case entries.Grant():
                self.first_grant = self.first_grant or self._now()
            case entries.Stop():
                self.stopped_at = self._now()
            case entries.Nonfinite(version, kept, variable, workers):
                self._kept_back += 1
                # It may happen with every version from here on.
                if self._kept_back & (self._kept_back - 1):
                    return
                fields = event(
                    "nonfinite", version=version, kept=kept, variable=variable, workers=named(workers)
                )
                log.warning("%s", entry.sentence(), extra=fields)
            case entries.Lost(worker):
                fields = event("connection_lost", worker=worker, grace=self._grace)
                log.warning(
                    "%s: its connection is lost; it has %.1f s to come back",
                    worker,
                    self._grace,
                    extra=fields,
                )
            case _ if entry.event:
                who = f"{entry.worker} " if hasattr(entry, "worker") else ""
                told = {each.name: getattr(entry, each.name) for each in declared(type(entry))}
                log.info("%s%s", who, entry.sentence(), extra=event(entry.event, **told))


# Remembered entries, and the most in one reply.
TAIL_ENTRIES, TAIL_REPLY = 8192, 1000


class LogTail:
    """The newest log entries. Costs an append per entry; lines are made only when asked for. The loop's thread owns
    it."""

    def __init__(self, remembered: int = TAIL_ENTRIES) -> None:
        self._records: deque[Record] = deque(maxlen=remembered)

    def append(self, record: Record) -> None:
        self._records.append(record)

    def since(self, first: int, most: int = TAIL_REPLY) -> list[Record]:
        """Return entries from number `first` on, or from the oldest remembered one."""
        if not self._records:
            return []
        skipped = max(first - self._records[0].index, 0)
        return list(islice(self._records, skipped, skipped + most))


def lines(records: Sequence[Record]) -> list[str]:
    """Return the records as lines of decisions.jsonl."""
    return [line_of(record.index, record.t, record.entry) for record in records]
