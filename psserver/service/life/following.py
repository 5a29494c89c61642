"""Any server but 0: executes the coordinator's decisions, and ends when server 0 says so."""

import asyncio
from contextlib import suppress
from pathlib import Path

from psserver.service.job.agreement import NextJob
from psserver.service.life.job_loop import Continuation
from psserver.service.life.settings import Announce, ServerSettings
from psserver.service.net.follow import FollowRpc
from psserver.service.store.host import ShardHost
from pswire.exits import ExitCode

# Longest sleep of a waiting server; and seconds between two looks at what an ending server writes.
LONGEST_SLEEP, LOOK_EVERY = 3600.0, 0.2
# Least seconds that a server waits for its first order.
LEAST_PATIENCE = 60.0


class Following:
    """The role of any server but 0. `rpc`: the method by which the coordinator gives orders. The loop's thread owns
    it."""

    def __init__(
        self,
        settings: ServerSettings,
        host: ShardHost,
        continuation: Continuation,
        announce: Announce,
        out: Path | None,
    ) -> None:
        """`out`: the run folder."""
        self._settings, self._host = settings, host
        self._continuation, self._announce = continuation, announce
        servers, wake = len(settings.hosts), continuation.wake.set
        self.rpc = FollowRpc(host, servers, wake, settings.former, out, continuation.hosts[0])

    async def run(self) -> ExitCode:
        """Run until the coordinator says so or is gone, or some time after a signal (`_wait_for_last_orders`)."""
        if not await self._ended():
            return self._stopped(self._unfollowed_reason(), ExitCode.UNREACHABLE)
        await self._wait_for_last_orders()
        return self._code()

    async def _ended(self) -> bool:
        """Wait for the end. Returns False if no coordinator gives orders and patience is over."""
        going, rpc = self._continuation, self.rpc
        limit = self._host.runtime.now() + self.patience
        while rpc.ending is None and going.signal is None:
            left = float("inf") if self._host.job else limit - self._host.runtime.now()
            if left <= 0:
                return False
            with suppress(TimeoutError):
                await asyncio.wait_for(going.wake.wait(), min(left, LONGEST_SLEEP))
            going.wake.clear()
        return True

    async def _wait_for_last_orders(self) -> None:
        """Wait after a signal for the coordinator's word.

        A signal usually reaches all servers of a job, in any order; server 0 then needs this server's part of a
        last checkpoint, and its final weights. The wait lasts `worker_timeout` seconds, and as long again after the
        first checkpoint that is ordered meanwhile, so a server that is signalled alone ends too.
        """
        going, rpc = self._continuation, self.rpc
        saver, seconds = self._host.saver, self._settings.terms.worker_timeout
        before, limit = saver.newest, self._host.runtime.now() + seconds
        while rpc.ending is None and self._host.job and self._host.runtime.now() < limit:
            with suppress(TimeoutError):
                await asyncio.wait_for(going.wake.wait(), min(limit - self._host.runtime.now(), LOOK_EVERY))
            going.wake.clear()
            if saver.working and saver.newest == before:
                limit = self._host.runtime.now() + seconds

    @property
    def patience(self) -> float:
        """Seconds that it waits for a coordinator. Servers are started in any order, and over some time."""
        if self._settings.again:
            return self._continuation.recover
        return max(self._settings.terms.idle_timeout, LEAST_PATIENCE)

    def _unfollowed_reason(self) -> str:
        """Return why it ends after that wait."""
        seconds, coordinator = self.patience, self._continuation.hosts[0]
        if self._settings.again:
            return f"the coordinator (server 0) did not come back within {seconds:g} s"
        return (
            f"the coordinator (server 0 at {coordinator}) gave no orders within {seconds:g} s: expected it to be "
            "started, with this server's address in its --ps-hosts; or its job is over"
        )

    def _code(self) -> ExitCode:
        going, ending = self._continuation, self.rpc.ending
        if ending is None or (going.signal and ending.exit_code == ExitCode.UNREACHABLE):
            # A supervisor must not restart what a signal has ended.
            code = ExitCode.INTERRUPTED if going.signal == "SIGINT" else ExitCode.TERMINATED
            return self._stopped(f"stopped by {going.signal}", code)
        if ending.recover and going.signal is None:
            going.again, going.recover = ending.reason, ending.recover
            return ending.exit_code
        if ending.next_folder:
            going.following = NextJob(folder=ending.next_folder)
        return self._stopped(ending.reason, ending.exit_code)

    def _stopped(self, reason: str, code: ExitCode) -> ExitCode:
        self._announce("stopped", {"reason": reason, "exit_code": int(code)})
        return code
