"""A ps-server through all that it serves: one `Server` after another in one process, on the same addresses.

Another one follows where the servers stay, for the next job; and where a server was lost, for the next generation of
this job. Nothing is taken over into it but addresses: what counts is on the disk. So there is one way to recover,
whoever was lost, and a loss while it is under way is a loss like any other.
"""

import gc
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType

from psserver.checkpoint.resumption import AUTO
from psserver.service.life.listeners import BindError
from psserver.service.life.settings import Announce, ServerSettings
from psserver.service.life.successor import Successor, ended_before, newest, numbered
from psserver.service.server import Server
from pswire.exits import ExitCode
from pswire.logs.events import event

# Without a new version in between.
MOST_FRUITLESS = 10


@dataclass(slots=True)
class Patience:
    """`fruitless`: generations in a row that have made no version which none had made before."""

    version: int = 0
    fruitless: int = 0

    def ended(self, version: int) -> bool:
        """A generation has ended at that version; whether another one is worth its while."""
        if version > self.version:
            self.version, self.fruitless = version, 0
        else:
            self.fruitless += 1
        return self.fruitless < MOST_FRUITLESS


log = logging.getLogger("ps-server")

# The port of a server that has ended is free soon; in seconds.
PORT_PATIENCE, PORT_PAUSE = 10.0, 0.05


class Servers:
    """`first` is what the first job is started with, `again` makes that of each other one: policies have a state, and
    jobs a name, of their own. `announce` is called as by `Server`, and with "recovering" where a server was lost.
    """

    def __init__(
        self, first: ServerSettings, again: Callable[[], ServerSettings], announce: Announce
    ) -> None:
        """Raises what `Server` raises."""
        self._again, self._announce = again, announce
        self._out = first.out
        self._signal: int | None = None
        self._patience = Patience()
        folder = 1
        if first.out is not None and first.resume == AUTO:
            # A later job may have been under way when the process before this one was lost.
            folder = newest(first.out)
            behind = "" if first.process.stay else ended_before(first.out, folder)
            first = replace(first, out=numbered(first.out, folder), behind=behind)
        self._present = Server(first, announce, self._out, folder)

    def run(self) -> ExitCode:
        """Serve until no job follows. Raises as `Server.run`."""
        code = self._present.run()
        while self._signal is None:
            following = self._present.continuation
            lost, successor = following.again, following.successor
            if lost is not None and self._worth_it():
                log.warning("%s: beginning again from what is saved", lost, extra=event("begins_again"))
                self._announce("recovering", {"reason": lost})
                code = self._run_recovering()
            elif lost is None and successor is not None:
                self._present = self._following(successor)
                if self._signal is None:
                    code = self._present.run()
            else:
                if lost is not None:
                    reason = f"{lost}; the job makes no progress"
                    self._announce("stopped", {"reason": reason, "exit_code": int(code)})
                return code
        return code if self._present.continuation.again is None else self._stopped()

    def _stopped(self) -> ExitCode:
        """By a signal between two servers: there is none whose job it could end."""
        return ExitCode.INTERRUPTED if self._signal == signal.SIGINT else ExitCode.TERMINATED

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """A signal handler, as `Server.interrupt`."""
        self._signal = number
        self._present.interrupt(number, frame)

    def _following(self, successor: Successor) -> Server:
        """At the same addresses, with a folder of its own, or going on in one."""
        before = self._present
        out = None if self._out is None else numbered(self._out, successor.folder)
        settings = self._again()
        settings = replace(
            settings,
            terms=replace(settings.terms, min_workers=successor.workers or settings.terms.min_workers),
            hosts=before.continuation.hosts,
            moved=before.continuation.moved,
            metrics_port=before.metrics_port,
            out=out,
            resume="latest" if successor.goes_on else None,
            behind=successor.behind,
        )
        return Server(settings, self._announce, self._out, successor.folder)

    # After a loss

    def _worth_it(self) -> bool:
        job = self._present.job
        # A shard ends when its coordinator says so, or does not come back in time.
        return job is None or self._patience.ended(job.coordinator.version)

    def _run_recovering(self) -> ExitCode:
        """At the same addresses, in the same folder, as soon as the port is free. Raises as `Server.run`."""
        before = self._present
        folder = before.folder
        settings = self._again()
        settings = replace(
            settings,
            terms=replace(settings.terms, min_workers=before.settings.terms.min_workers),
            hosts=before.continuation.hosts,
            moved=before.continuation.moved,
            metrics_port=before.metrics_port,
            out=before.settings.out,
            resume=AUTO if before.settings.task_index == 0 else None,
            recover=before.continuation.recover,
            again=True,
            former=before.host.job or before.settings.former,
            behind=before.settings.behind,
        )
        # Its arrays are not needed beside those that are read now.
        del before
        deadline = time.monotonic() + PORT_PATIENCE
        while True:
            self._present = Server(settings, self._announce, self._out, folder)
            gc.unfreeze()
            gc.collect()
            # One that comes from here on is this server's.
            if self._signal is not None:
                return self._stopped()
            try:
                return self._present.run()
            except BindError:
                if self._signal is not None:
                    return self._stopped()
                if time.monotonic() > deadline:
                    raise
                time.sleep(PORT_PAUSE)
