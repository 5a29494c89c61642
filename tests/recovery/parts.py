"""A part of the model without the coordinator, and the coordinator's side of the stream of orders to it.

As `replicas.part` and `replicas.followers` have them: the part's primary executes an order at once, because the
coordinator sends only what nothing undoes, and sends again what not all copies have.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from psserver.coordinator import Record
from psserver.replication import Replica, begin, first_config, restart
from psserver.replication.configuration import Disk
from psserver.service.replicas.logs import holders
from psserver.shard import ShardState
from pswire.decisions import entries
from tests.recovery.holding import Holding
from tests.recovery.network import Copy, Sent, Way

if TYPE_CHECKING:
    from tests.recovery.copies import Server

# Seconds after which a server that serves no orders is asked again.
AGAIN = 0.5


class Part(Holding):
    """The copy of a part on a server, or its vote where it has none.

    `opened`: a coordinator has come to its log, whose first item names the generation's `checkpoint`: a number of
    entries, and the shard behind them.
    """

    def __init__(self, process: "Server", part: int) -> None:
        super().__init__(process.cluster, process.number, part)
        self.process = process
        self.begin(None)

    def begin(self, kept: int | None, saved: ShardState | None = None) -> None:
        """Begin a generation: with a checkpoint's shard behind so many entries, which all copies read."""
        first = first_config(holders(self.part))
        self.disk = Disk(first.epoch, first)
        self._run(begin(self.number, self.cluster.count, first), formed=False)
        self.leads = self.shell.replica.leads
        self.checkpoint = None if saved is None or kept is None else (kept, saved)
        self._read_checkpoint()

    def _read_checkpoint(self) -> None:
        if self.checkpoint is not None:
            self.shard.follow(self.cluster.name, *self.checkpoint)

    def begin_again(self) -> None:
        """A process of the same server: with nothing but what is on its disk."""
        holds, incarnation = self.number in holders(self.part), self.process.incarnation
        self._run(restart(self.number, self.cluster.count, incarnation, holds, self.disk), formed=True)

    def _run(self, replica: Replica, *, formed: bool) -> None:
        self.hold(replica, formed=formed)
        self.shard.follow(self.cluster.name, 0, None)
        self.opened = False
        # Whether an order is being taken.
        self._turn = False
        # The epoch of the coordinator that gives orders, its stream, 0 for none, and its server.
        self.ordered_in, self.stream, self._coordinator = -1, 0, -1
        # What has come on the stream, and whether the answer to what was taken of that is due.
        self._requests: deque[list[Record]] = deque()
        self._answers = False

    def look(self) -> None:
        if self.leads and self.shell.replica.disk.config.primary != self.number:
            self.ended = True

    def _succeed(self) -> None:
        self.activation, self.leads = None, True
        self.cluster.count_of["takeover of a part"] += 1

    # Orders

    def take(self, sender: int, epoch: int, stream: int, records: list[Record] | None) -> None:
        """Take orders of a coordinator, but for what was taken before. None: its stream begins."""
        if not self.leads or self.ended or epoch < self.ordered_in:
            return
        if records is None:
            self._end_stream()
            self.ordered_in, self.stream, self._coordinator = epoch, stream, sender
            if not self.opened:
                self.opened = True
                self.offer(b"a")
            self._answer()
        elif stream == self.stream:
            self._requests.append(records)
            self._go_on()

    def _end_stream(self) -> None:
        """Another stream begins: who sent on the former one hears that it is over."""
        if self.stream:
            way = Way(self.number, self._coordinator, self.stream)
            self.cluster.network.post(way, Sent(self.part, ended=self.stream))
        self._requests.clear()

    def _go_on(self) -> None:
        """Take the next orders, unless the answer to those before waits for the other copy."""
        while self._requests and not self._answers:
            self._turn = True
            for record in self._requests.popleft():
                if record.index >= self.shard.executed:
                    self._order(record)
            self._turn = False
            self._attempt()
            self._answer()

    def _answer(self) -> None:
        """Say how far this part is, once all copies have what was taken so far."""
        self._answers, stream = True, self.stream

        def tell() -> None:
            if stream == self.stream:
                self._answers = False
                done = Sent(self.part, executed=(stream, self.shard.executed))
                self.cluster.network.post(Way(self.number, self._coordinator, stream), done)
                self._go_on()

        self.when_stable(tell)

    def _order(self, record: Record) -> None:
        saver = self.saver()
        self.offer(b"o%d %d" % (saver, record.index))
        self._execute(record, saver)

    def when_stable(self, then: Callable[[], None]) -> None:
        if not self.held:
            then()
            return
        last = self.held[-1]

        def both() -> None:
            last()
            then()

        self.held[-1] = both

    def _execute(self, record: Record, saver: int) -> None:
        self.shard.execute(record)
        self.shard.saves.clear()
        if isinstance(record.entry, entries.Checkpoint) and self.saves(saver):
            self.cluster.save(record.index, self.part, self.shard.state(), self.process)
        if isinstance(record.entry, entries.Apply):
            self.compare(record.entry.version)

    def _take_again(self, body: bytes) -> None:
        kind, rest = body[:1], body[1:]
        if kind == b"a":
            self.opened = True
            self._read_checkpoint()
        elif kind == b"p":
            if not self.shard.refuses(int(rest)):
                self.shard.push(int(rest))
        else:
            saver, index = map(int, rest.split())
            self._execute(self.cluster.log[index], saver)

    # Copies

    def _attempt(self) -> None:
        if self.leads and self.wanted is not None and not self.held and self.opened and not self._turn:
            to, self.wanted = self.wanted, None
            copy = Copy(self.executed, self.shell.replica.synced, self.shard.executed, self.shard.state())
            self.cluster.network.post(Way(self.number, to), Sent(self.part, copy=copy))

    @property
    def _begun(self) -> bool:
        return self.opened

    def _take_up(self, copy: Copy) -> None:
        self.shard.follow(self.cluster.name, copy.about, copy.shard)
        self.opened = True


class Orders:
    """The stream of orders to whichever server has a part. Both copies of the coordinator keep what it may lack."""

    def __init__(self, process: "Server", part: int) -> None:
        self.process, self._part = process, part
        self.kept: deque[Record] = deque()
        self.executed = 0
        self._to: int | None = None
        # 0: there is no stream.
        self._stream, self._ready, self._since = 0, False, 0.0

    def send(self, record: Record) -> None:
        self.kept.append(record)
        if self._ready and self.process.leads:
            self._post([record])

    def hold(self, count: int) -> None:
        """Keep no orders below that number: all copies of the part have them."""
        self.executed = max(self.executed, count)
        while self.kept and self.kept[0].index < self.executed:
            self.kept.popleft()

    def look(self) -> None:
        """Begin a stream to the server that has the part, if there is none."""
        shell, now = self.process.log(self._part).shell, self.process.time
        primary = shell.watch.primary
        to = shell.replica.disk.config.primary if primary is None or not shell.formed else primary
        if to != self._to or (not self._ready and now - self._since > AGAIN):
            self.process.cluster.begun += 1
            self._to, self._stream, self._since = to, self.process.cluster.begun, now
            self._ready = False
            self._post(None)

    def _post(self, records: list[Record] | None) -> None:
        assert self._to is not None
        process = self.process
        epoch = process.shell.replica.disk.config.epoch
        way = Way(process.number, self._to, self._stream)
        process.cluster.network.post(way, Sent(self._part, orders=(epoch, self._stream, records)))

    def done(self, stream: int, executed: int) -> None:
        """All copies of the part have executed so many."""
        if stream != self._stream:
            return
        begins, self._ready = not self._ready, True
        self.hold(executed)
        if begins:
            self._post([record for record in self.kept if record.index >= executed])

    def end(self, stream: int) -> None:
        """The server that has the part has ended that stream."""
        if stream == self._stream:
            self._to, self._stream, self._ready = None, 0, False

    def broke(self, server: int) -> None:
        if server == self._to:
            self._to, self._stream, self._ready = None, 0, False
