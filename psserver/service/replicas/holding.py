"""A copy of a part on one server: a primary takes items, and a follower takes again what the primary took."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final

from psserver.replication import Config
from psserver.replication.messages import Broke, Installed
from psserver.service.net.loop import settle
from psserver.service.replicas import payloads
from psserver.service.replicas.bodies import Body
from psserver.service.replicas.comparing import Comparing
from psserver.service.replicas.giving import Given, Giving
from psserver.service.replicas.learning import Arrival
from psserver.service.replicas.saving import Saving
from psserver.service.replicas.shell import Shell
from psserver.service.replicas.transfer import CopyError, WholeCopy
from pswire import running
from pswire.logs.events import event
from pswire.transport.segments import SegmentError
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# The first byte of an item that is a payload.
PAYLOAD = b"p"
#: Seconds that a follower that ends may take to save its part.
SAVING: Final = 60.0
#: Seconds for which a copy executes items before others have a turn of the loop.
TURN: Final = 0.002


class Holding(ABC):
    """The server's side of a part's log, on a server that has a copy. The loop's thread owns it.

    `leads`: whether this server takes items. `epoch`: in which it does. `changed`: called when it leads, or leads no
    more; `deposed`: in which epoch another server began to lead; `outdated`: why what this server has counts no more,
    so that it begins again with a copy. `takeovers`: how often this server took the place of another one. `comparing`:
    its versions with the other copy's.
    """

    def __init__(
        self, host: payloads.ReplicatedHost, shell: Shell, changed: Callable[[], object], settings: str
    ) -> None:
        """Hold one part. `settings`: what must be the same on both servers."""
        self._host, self._shell, self._changed = host, shell, changed
        self.leads, self.epoch, self.deposed = False, 0, 0
        self.outdated = ""
        self.takeovers = 0
        self.failure: Exception | None = None
        # How many items are executed here, and how many may be.
        self._executed = self._upto = 0
        # A primary's: what to do with each item once it is stable, from number `_executed` on; and who waits.
        self._held: deque[Callable[[], None]] = deque()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._activated: Config | None = None
        self._more = asyncio.Event()
        self._arrival = Arrival(host.memory)
        self._giving = Giving(shell.links.links, settings, lambda to: shell.give(Broke(to)), self._takes)
        self.comparing = Comparing(host, shell)
        self._saving = Saving(host, shell)
        host.stable = self.stable
        host.serve(lambda: self.leads, self._forward)

    @property
    @abstractmethod
    def _begun(self) -> bool:
        """Whether there is a copy here."""

    @abstractmethod
    async def _take_again(self, body: Body) -> None:
        """Execute an item that another server took."""

    @abstractmethod
    async def _take_up(self, whole: WholeCopy) -> int:
        """Restore from a copy; return its version."""

    @abstractmethod
    def _to_give(self) -> Given | None:
        """Return what a copy is made of; None if there can be none now."""

    @abstractmethod
    def _succeed(self, config: Config) -> None:
        """Lead: everything that the former primary may have let go is executed here."""

    # Leading

    def _lead(self) -> None:
        self.leads, self.epoch = True, self._shell.replica.disk.config.epoch
        self._host.orders.unread_goes = False

    def _offer(self, body: Body, release: Callable[[], None] = lambda: None) -> None:
        self._held.append(release)
        self._shell.offer(body)

    def _forward(self, parts: list[Body]) -> None:
        self._offer(self._shell.bodies.make([PAYLOAD, *parts]))

    async def stable(self) -> None:
        """Wait until the copies hold everything that was taken so far."""
        if self._held:
            future = self._host.runtime.loop.create_future()
            self._waiting.append((self._executed + len(self._held), future))
            await future

    # The log

    def execute(self, upto: int) -> None:
        """Execute the first `upto` items of the log."""
        self.look()
        if self.deposed or self.outdated:
            # These may be another primary's items: no answer that waits here may leave for them.
            return
        self._upto = upto
        if not self.leads:
            self._more.set()
            return
        while self._executed < self._upto:
            self._executed += 1
            self._held.popleft()()
        while self._waiting and self._waiting[0][0] <= self._executed:
            settle(self._waiting.popleft()[1])
        # Behind the answers to those: the log only forgets what is executed.
        self._host.runtime.loop.call_soon(self._shell.executed, self._executed)
        self._attempt()

    def activated(self, config: Config) -> None:
        """Make this server the primary of an epoch, once it has executed what the log has."""
        self.comparing.activated(config)
        self._saving.activated()
        if self.leads:
            self.epoch = config.epoch
            # Learners are welcomed anew in each epoch, and get their copy then.
            self._giving.stop_all()
            return
        self._activated = config
        self._more.set()

    def stepped_down(self, epoch: int) -> None:
        """Lead no more in that epoch; perhaps in a later one."""
        self.look()

    def look(self) -> None:
        """Notice that another server leads. What was taken here and is not stable is void, and so is this copy."""
        replica = self._shell.replica
        if self.leads and replica.disk.config.primary != replica.server and not self.deposed:
            # A primary that included this copy again would wait for it in vain.
            self._host.runtime.loop.call_soon(self._shell.keep_no_copy)
            self._depose(replica.disk.config.epoch)
        if not self.leads:
            self._saving.tell()

    def _depose(self, epoch: int) -> None:
        self.deposed = epoch
        self._changed()

    def give_copy(self, to: int) -> None:
        """Give a learner a copy, as soon as everything that was taken here is stable."""
        self._giving.want(to)
        self._attempt()

    def broke(self, server: int) -> None:
        """Stop giving a copy to a server whose stream broke, or that is silent."""
        self._giving.stop(server)

    def _takes(self, to: int) -> bool:
        return any(each.copying for each in self._shell.replica.progress if each.member.server == to)

    def _attempt(self) -> None:
        if self.leads and self._giving.waits and not self._held and (given := self._to_give()) is not None:
            self._giving.begin(given, self._executed, self.epoch)

    def reset(self) -> None:
        """Begin again with a copy: this one differs from the primary's."""
        self._begin_again("this copy is not the primary's equal")

    def fail(self, error: Exception) -> None:
        """Take no further part."""
        self.failure = self.failure or error
        self._changed()

    def _begin_again(self, why: str) -> None:
        self.outdated = self.outdated or why
        self._changed()

    def hear_saved(self, sender: int, saved: shard_pb2.Saved) -> None:
        """Take a follower's part of a checkpoint."""
        if self.leads:
            self._saving.hear(sender, saved)

    async def finish_saving(self) -> None:
        """Wait for the part of a checkpoint that is being written here, and tell of it, unless this copy is void."""
        if not (self.deposed or self.outdated or self.failure):
            await self._host.state.changes.wait_for(lambda: not self._host.saver.working, SAVING)
            self._saving.tell()

    # Learning

    def arrives(self, sender: int, piece: shard_pb2.CopyPiece) -> None:
        """Take a piece of a copy, if this server needs one. Raises Refused for a piece that does not follow."""
        replica = self._shell.replica
        needed = not self.leads and not replica.in_sync(replica.disk.config) and piece.at > replica.log.stable
        # Nobody is watched before all were met.
        primary = self._shell.watch.primary if self._shell.formed else replica.disk.config.primary
        follows = sender == primary and piece.epoch == replica.synced
        if not needed or not follows:
            return
        if self._arrival.here and piece.at <= self._arrival.at:
            return
        # The primary makes another copy only if it has forgotten what follows on the one before.
        if self._arrival.here or self._begun:
            self._begin_again("this copy was left out, and its primary has forgotten what it lacks")
            return
        try:
            self._arrival.take(piece)
        except CopyError as error:
            self.fail(error)
        if self._arrival.here:
            self._more.set()

    async def _learn(self) -> None:
        """Take up the copy that is here."""
        try:
            whole = await self._host.runtime.passes.on_pool(self._arrival.read)
        except SegmentError as error:
            self._begin_again(f"the copy was gone before it was read: {error}")
            return
        version = await self._take_up(whole)
        self._arrival.end()
        self.comparing.begin(version)
        self._executed = self._upto = whole.at
        fields = event("copy_taken", version=version)
        what = f"version {version}" if version >= 0 else "a job whose model is not known yet"
        log.info("has a copy of %s, and follows from there", what, extra=fields)
        self._shell.give(Installed(whole.at))

    # Following

    async def follow(self) -> None:
        """Execute items that another server took, until this one leads."""
        try:
            while not self.leads:
                await self._more.wait()
                self._more.clear()
                if self._arrival.here:
                    await self._learn()
                began = running.now()
                while self._executed < self._upto:
                    held = self._shell.replica.log
                    body = self._shell.bodies[held.tail[self._executed - held.first]]
                    await self._take_again(body)
                    if running.now() - began >= TURN:
                        # A learner takes many of them in a row.
                        await asyncio.sleep(0)
                        began = running.now()
                    self._executed += 1
                    self._shell.executed(self._executed)
                if self._activated is not None:
                    config, self._activated = self._activated, None
                    self._succeed(config)
        except Exception as error:
            log.exception("this copy cannot go on", extra=event("replica_failed"))
            self.fail(error)
