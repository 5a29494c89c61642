"""Carries out what the protocol's state machine says: outputs in order, the disk before all that follows."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from psserver.replication import Config, Disk, Replica, take
from psserver.replication.copying import WINDOW
from psserver.replication.messages import (
    Activate,
    Append,
    Beat,
    Broke,
    Execute,
    Executed,
    GiveCopy,
    Input,
    Item,
    Message,
    Offer,
    Output,
    Persist,
    Receive,
    Reset,
    Send,
    StepDown,
    Sync,
)
from psserver.replication.watch import HEARTBEAT, Watch
from psserver.service.replicas.links import Links
from pswire.logs.events import event

log = logging.getLogger("ps-server")

#: Seconds between two looks at who is silent.
LOOK: Final = 0.05


class Machine(Protocol):
    """What the log is for: it executes stable items, and hears who leads."""

    def execute(self, upto: int) -> None: ...

    def activated(self, config: Config) -> None: ...

    def stepped_down(self, epoch: int) -> None: ...

    def give_copy(self, to: int) -> None: ...

    def reset(self) -> None: ...


class Shell:
    """One server's part in the log, with its links and its disk. The loop's thread owns it.

    `keep`: puts a promise on the disk. `machine` is set before the first input. `formed`: whether all servers were met,
    so that whoever is silent is lost, and not just late to start.
    """

    machine: Machine

    def __init__(self, replica: Replica, links: Links, keep: Callable[[Disk], None], *, formed: bool) -> None:
        self.replica, self.links, self.formed = replica, links, formed
        self.watch = Watch(replica.server, time.monotonic())
        # What items of the log consist of.
        self.bodies: dict[Item, bytes] = {}
        self._keep = keep
        self._inputs: deque[Input] = deque()
        self._busy = False
        # Items that the log does not take yet.
        self._offers: deque[tuple[Item, bytes]] = deque()
        self._offered = 0
        self._beaten = 0.0

    def offer(self, body: bytes) -> None:
        """Have the log take an item, as soon as this server leads and has room. The order of calls is the log's."""
        self._offered += 1
        self._offers.append(((self.replica.disk.config.epoch, self._offered), body))
        self._run()

    def give(self, given: Input) -> None:
        self._inputs.append(given)
        self._run()

    def receive(self, sender: int, message: Message) -> None:
        now = time.monotonic()
        withheld = self.watch.withholds(self.replica, sender, message, now)
        self.watch.hear(sender, message, now)
        if not withheld:
            self.give(Receive(sender, message))
        if isinstance(message, Append | Sync):
            # What the log had before. What it does not take because of a gap comes again, without its body.
            start = message.start if isinstance(message, Append) else message.first
            for item in message.items[: max(0, self.replica.log.first - start)]:
                self.bodies.pop(item, None)

    def hold(self, item: Item, body: bytes) -> None:
        self.bodies[item] = body

    def broke(self, server: int) -> None:
        self.watch.broke(server)
        self.give(Broke(server))

    def tick(self) -> None:
        """Let time pass: heartbeats, and a change of the configuration where one is due."""
        now = time.monotonic()
        if now - self._beaten >= HEARTBEAT:
            self._beaten = now
            self.beat()
        if not self.formed:
            self.formed = self.links.met.issuperset(self.links.links)
            self.watch = Watch(self.replica.server, now) if not self.formed else self.watch
            return
        order = self.watch.decide(self.replica, now)
        if order is not None:
            self.give(order)

    def beat(self) -> None:
        """Send the heartbeat; a primary's says to every server who leads."""
        self.give(Beat())

    def _run(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while (given := self._next()) is not None:
                before = self.replica.log
                self.replica, outputs = take(self.replica, given)
                for output in outputs:
                    self._carry_out(output)
                for item in before.tail[: self.replica.log.first - before.first]:
                    self.bodies.pop(item, None)
                    self.links.forget(item)
        finally:
            self._busy = False

    def _next(self) -> Input | None:
        if self._inputs:
            return self._inputs.popleft()
        replica = self.replica
        if self._offers and replica.leads and not replica.sealed and len(replica.log.tail) < WINDOW:
            item, self.bodies[item] = self._offers.popleft()
            return Offer(item)
        return None

    def _carry_out(self, output: Output) -> None:
        match output:
            case Persist(disk):
                self._keep(disk)
            case Send(to, message):
                items = message.items if isinstance(message, Append | Sync) else ()
                self.links.send(to, message, ((item, self.bodies[item]) for item in items))
            case Execute(upto):
                self.machine.execute(upto)
            case Activate(config):
                servers = ", ".join(str(each.server) for each in config.members)
                fields = event("replica_leads", epoch=config.epoch, members=servers)
                log.warning("leads in epoch %d; copies on servers %s", config.epoch, servers, extra=fields)
                self.machine.activated(config)
            case StepDown(epoch):
                self.machine.stepped_down(epoch)
            case GiveCopy(to):
                self.machine.give_copy(to)
            case Reset():
                self.machine.reset()

    def executed(self, count: int) -> None:
        """The first `count` items are executed here."""
        self.give(Executed(count))
