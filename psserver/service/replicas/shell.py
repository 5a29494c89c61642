"""Carries out what the protocol's state machine says: outputs in order, the disk before all that follows."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from psserver.replication import Config, Replica, StableMemory, restart, take
from psserver.replication.copying import WINDOW
from psserver.replication.messages import (
    Activate,
    Append,
    Beat,
    Broke,
    Execute,
    Executed,
    GiveCopy,
    Held,
    Input,
    Item,
    Message,
    Offer,
    Output,
    Persist,
    Receive,
    Refuse,
    Reset,
    Send,
    StepDown,
    Sync,
)
from psserver.replication.pace import LearnerPace
from psserver.replication.watch import HEARTBEAT, NEAR, PeerWatch
from psserver.service.job.log_file import LogError
from psserver.service.replicas.bodies import Bodies, Body
from psserver.service.replicas.links import Links
from pswire import running
from pswire.logs.events import event

log = logging.getLogger("ps-server")

#: Seconds between two looks at who is silent.
LOOK: Final = 0.05
#: Seconds that a follower waits for the beginning of the log before it takes the primary for lost.
BEGINNING: Final = 30.0
#: Bytes of items that the log keeps, unless it is told another number.
MOST: Final = 1 << 30


class Machine(Protocol):
    """The machine that a log is for: it executes stable items, and hears who leads."""

    def execute(self, upto: int) -> None: ...

    def activated(self, config: Config) -> None: ...

    def stepped_down(self, epoch: int) -> None: ...

    def give_copy(self, to: int) -> None: ...

    def broke(self, server: int) -> None: ...

    def reset(self) -> None: ...

    def fail(self, error: Exception) -> None: ...


def _later(seconds: float, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, call)


class Shell:
    """One server's part in a log, with its links and its disk. The loop's thread owns it.

    `keep`: puts a promise on the disk, or raises LogError, which ends this server's part. `machine` is set before the
    first input. `formed`: whether all servers were met and the log has begun, so that whoever is silent is lost, and
    not just late to start. `most`: bytes of items beyond which the log takes no more of them before the copies have
    executed some. `delay`: seconds between two items that it takes, for a learner. `bodies`: what items consist of.
    `part`: whose log it is. `begins`: a copy cannot lead before it has the log's first item. `now`: the
    clock, in seconds; `later(seconds, call)`: schedules a call.
    """

    machine: Machine

    def __init__(
        self,
        replica: Replica,
        links: Links,
        keep: Callable[[StableMemory], None],
        *,
        formed: bool,
        most: int = MOST,
        bodies: Bodies | None = None,
        part: int = 0,
        begins: bool = True,
        now: Callable[[], float] = running.now,
        later: Callable[[float, Callable[[], None]], object] = _later,
    ) -> None:
        self.part, self._begins = part, begins
        self._now, self._call_later = now, later
        self.replica, self.links, self.formed = replica, links, formed
        # What this server leads, or led: one that it proposes may yet fail.
        self.active = replica.disk.config
        self.watch = PeerWatch(replica.server, now())
        self.bodies = bodies or Bodies()
        self._keep, self._most = keep, most
        self._inputs: deque[Input] = deque()
        self._busy = self._failed = False
        # Items that the log does not take yet.
        self._offers: deque[tuple[Item, Body]] = deque()
        self._offered = 0
        # Messages that wait for the next tick; the configuration last told to each server, and what was acknowledged.
        self._later: dict[int, Message] = {}
        self._told: dict[int, Config] = {}
        self._acknowledged: dict[int, tuple[int, int, int, int]] = {}
        self._beaten = 0.0
        self._met_at: float | None = None
        # A learner that falls behind: seconds between two items that are taken, and when the next one may be.
        self._pace, self.delay, self._free_at, self._waits = LearnerPace(), 0.0, 0.0, False
        # Until then this server does not show that it leads (`psserver.replication.reach`).
        self.rests_until = now()

    def offer(self, body: Body) -> None:
        """Have the log take an item, as soon as this server leads and has room. The order of calls is the log's."""
        self._offered += 1
        self._offers.append(((self.replica.disk.config.epoch, self._offered), body))
        self._run()

    def give(self, given: Input) -> None:
        self._inputs.append(given)
        self._run()

    def receive(self, sender: int, message: Message) -> None:
        now = self._now()
        withheld = self.watch.withholds(self.replica, sender, message, now)
        self.watch.hear(sender, message, now, self.replica.disk.promised)
        if not withheld:
            self.give(Receive(sender, message))
        if isinstance(message, Append | Sync):
            # What the log had before. What it does not take because of a gap comes again, without its body.
            start = message.start if isinstance(message, Append) else message.first
            for item in message.items[: max(0, self.replica.log.first - start)]:
                self.bodies.drop(item)

    def hold(self, item: Item, body: Body) -> None:
        """Keep what an item consists of until all copies have executed it."""
        self.bodies.hold(item, body)

    def broke(self, server: int) -> None:
        self.watch.broke(server)
        self._forget_learner(server)

    def _forget_learner(self, server: int) -> None:
        self.machine.broke(server)
        self.give(Broke(server))

    def tick(self) -> None:
        """Let time pass: what waits, heartbeats, and a change of the configuration where one is due."""
        if self._failed:
            return
        self._send_later()
        now = self._now()
        # A candidate for a place asks again soon: others hear the former primary a moment longer, and do not answer.
        standing = self.replica.standing
        asks = standing is not None and not standing.include and not self.replica.leads
        if now - self._beaten >= HEARTBEAT or asks:
            self._beaten = now
            self.beat()
        if not self.formed:
            self.formed = self._forms(now)
            self.watch = PeerWatch(self.replica.server, now) if not self.formed else self.watch
            return
        for learner in self.watch.silent_learners(self.replica, now):
            self._forget_learner(learner)
        self._slow_down(now)
        order = self.watch.decide(self.replica, now)
        if order is not None:
            self.give(order)

    def _forms(self, now: float) -> bool:
        """Return whether all servers were met, and a member has what the log begins with, without which it could not
        lead, or has waited long for it."""
        if not self.links.met.issuperset(self.links.links):
            return False
        self._met_at = now if self._met_at is None else self._met_at
        leads_never = self.replica.member not in self.replica.disk.config.members
        begun = not self._begins or leads_never or self.replica.log.end > 0
        return begun or now - self._met_at > BEGINNING

    def _slow_down(self, now: float) -> None:
        """Let the log take items no faster than a learner can, if it falls behind."""
        replica, members = self.replica, self.replica.disk.config.members
        learners = [each for each in replica.progress if each.member not in members and not each.copying]
        if not replica.leads or not learners:
            self._pace, self.delay = LearnerPace(), 0.0
            return
        self.delay = max(self._pace.caught(replica.log.end, each.executed, NEAR, now) for each in learners)

    def beat(self) -> None:
        """Send the heartbeat; a primary's says to every server who leads."""
        self.give(Beat())
        primary = self.watch.primary
        if not self.replica.holds and primary is not None:
            # A sign of life of one that has nothing to say: it refuses what it has promised to refuse.
            self._put(primary, Refuse(self.replica.disk.promised))
        self._send_later()

    def _run(self) -> None:
        if self._busy or self._failed:
            return
        self._busy = True
        try:
            while (given := self._next()) is not None:
                before = self.replica.log
                self.replica, outputs = take(self.replica, given)
                for output in outputs:
                    self._carry_out(output)
                for item in before.tail[: self.replica.log.first - before.first]:
                    self.bodies.drop(item)
                    self.links.forget(item)
        except LogError as error:
            # Without the promise on its disk this server takes no further part.
            self._failed = True
            self.machine.fail(error)
        finally:
            self._busy = False

    def _next(self) -> Input | None:
        if self._inputs:
            return self._inputs.popleft()
        if not self._offers or not self._takes():
            return None
        item, body = self._offers.popleft()
        self.hold(item, body)
        return Offer(item)

    def _takes(self) -> bool:
        """Return whether the log takes an item now. If it may take one later without another input, that is tried."""
        replica, tail = self.replica, self.replica.log.tail
        if (
            not replica.leads
            or replica.sealed
            or len(tail) >= WINDOW
            or (tail and self.bodies.nbytes >= self._most)
        ):
            return False
        if self.delay:
            now = self._now()
            if now < self._free_at:
                if not self._waits:
                    self._waits = True
                    self._call_later(self._free_at - now, self._look_again)
                return False
            self._free_at = now + self.delay
        return True

    def _look_again(self) -> None:
        self._waits = False
        self._run()

    def _carry_out(self, output: Output) -> None:
        match output:
            case Persist(disk):
                self._keep(disk)
            case Send(to, message):
                self._send(to, message)
            case Execute(upto):
                self.machine.execute(upto)
            case Activate(config):
                self.active = config
                servers = ", ".join(str(each.server) for each in config.members)
                fields = event("replica_leads", epoch=config.epoch, members=servers, part=self.part)
                where = f" part {self.part}" if self.part else ""
                log.warning(
                    "leads%s in term %d; copies on servers %s", where, config.epoch, servers, extra=fields
                )
                self.machine.activated(config)
            case StepDown(epoch):
                self.machine.stepped_down(epoch)
            case GiveCopy(to):
                self.machine.give_copy(to)
            case Reset():
                self.machine.reset()

    def _send(self, to: int, message: Message) -> None:
        """Send a message; what only says that more is stable or executed waits for the next one of its kind, or a tick.

        In a job that trains the next one comes at once, and says it too.
        """
        later, self._later[to] = self._later.get(to), message
        if later is not None and type(later) is not type(message):
            self._put(to, later)
        if isinstance(message, Append):
            waits, self._told[to] = self._told.get(to) == message.config, message.config
            waits = waits and not message.items
        elif isinstance(message, Held):
            # What a learner has executed decides when it is sent more.
            learns = self.replica.member not in self.replica.disk.config.members
            executed = message.executed if learns else 0
            said = message.epoch, message.incarnation, message.end, executed
            waits, self._acknowledged[to] = self._acknowledged.get(to) == said, said
        else:
            waits = False
        if not waits:
            self._put(to, self._later.pop(to))

    def _send_later(self) -> None:
        while self._later:
            self._put(*self._later.popitem())

    def _put(self, to: int, message: Message) -> None:
        if isinstance(message, Append) and self._now() < self.rests_until:
            return
        items = message.items if isinstance(message, Append | Sync) else ()
        self.links.send(to, message, ((item, self.bodies[item]) for item in items), part=self.part)

    def keep_no_copy(self) -> None:
        """Only vote from now on, as a server that has started again without a copy. Not within an input's outputs."""
        old = self.replica
        self.replica = restart(old.server, old.servers, old.incarnation, False, old.disk)

    def executed(self, count: int) -> None:
        """Note that the first `count` items are executed here."""
        self.give(Executed(count))
