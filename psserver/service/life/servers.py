"""A ps-server process: one `Server` after another on the same addresses.

Another server follows for the next job, if this one makes room for it; and if a server was lost, for the next
generation of this job. It takes over nothing but addresses: what counts is on the disk. So there is one way to recover,
whichever server was lost, and a loss during a recovery is a loss like any other.
"""

import gc
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType

from psserver.checkpoint.resumption import AUTO
from psserver.service.job.agreement import NextJob
from psserver.service.job.next_job import newest, numbered, predecessors
from psserver.service.life.settings import Announce, ServerSettings
from psserver.service.runtime import BindError, Runtime
from psserver.service.server import Server
from pswire import running
from pswire.exits import ExitCode
from pswire.logs.events import event

# Most generations in a row without a new version.
MOST_FRUITLESS = 10


@dataclass(slots=True)
class Patience:
    """The count of generations in a row (`fruitless`) that have made no new version."""

    version: int = 0
    fruitless: int = 0

    def ended(self, version: int) -> bool:
        """Record that a generation ended at that version; return whether another one is worthwhile."""
        if version > self.version:
            self.version, self.fruitless = version, 0
        else:
            self.fruitless += 1
        return self.fruitless < MOST_FRUITLESS


log = logging.getLogger("ps-server")

# Seconds to wait for the port of the ended server, and between two attempts.
PORT_PATIENCE, PORT_PAUSE = 10.0, 0.05


class Servers:
    """All servers of one process, one after another. `first`: settings of the first job; `again`: makes those of
    each further one, because policies have a state and jobs a name of their own. `announce`: as for `Server`; also
    called with "recovering" when a server was lost."""

    def __init__(
        self,
        first: ServerSettings,
        again: Callable[[], ServerSettings],
        announce: Announce,
        runtime: Callable[[], Runtime] = Runtime,
    ) -> None:
        """Start the server of the first job. `runtime`: makes that of each server. Raises what `Server` raises."""
        self._again, self._announce, self._runtime = again, announce, runtime
        self._out = first.out
        self._signal: int | None = None
        self._patience = Patience()
        folder = 1
        if first.out is not None and first.resume == AUTO:
            # A later job may have been under way when the process before this one was lost.
            folder = newest(first.out)
            terms = replace(first.terms, predecessors=predecessors(first.out, folder))
            first = replace(first, out=numbered(first.out, folder), terms=terms)
        self._present = Server(first, announce, self._out, folder, runtime())

    def run(self) -> ExitCode:
        """Serve until no job follows. Raises as `Server.run`."""
        code = self._present.run()
        while self._signal is None:
            lost, following = self._present.continuation.again, self._present.continuation.following
            if lost is not None and self._worth_it():
                log.warning("%s: beginning again", lost, extra=event("begins_again"))
                self._announce("recovering", {"reason": lost})
                code = self._run_recovering()
            elif lost is None and following is not None:
                self._present = self._following(following)
                if self._signal is None:
                    code = self._present.run()
            else:
                if lost is not None:
                    reason = f"{lost}; the job makes no progress"
                    self._announce("stopped", {"reason": reason, "exit_code": int(code)})
                return code
        return code if self._present.continuation.again is None else self._stopped()

    def _stopped(self) -> ExitCode:
        """Return the exit code of a signal between two servers, when there is no job to end."""
        return ExitCode.INTERRUPTED if self._signal == signal.SIGINT else ExitCode.TERMINATED

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal, as `Server.interrupt`."""
        self._signal = number
        self._present.interrupt(number, frame)

    def _following(self, job: NextJob) -> Server:
        """Make the next job's server, at the same addresses, in a folder of its own."""
        before = self._present
        out = None if self._out is None else numbered(self._out, job.folder)
        settings = self._again()
        workers = job.workers or settings.terms.min_workers
        settings = replace(
            settings,
            terms=replace(settings.terms, min_workers=workers, predecessors=job.predecessors),
            hosts=before.continuation.hosts,
            metrics_port=before.metrics_port,
            out=out,
            resume=None,
        )
        return Server(settings, self._announce, self._out, job.folder, self._runtime())

    # After a loss

    def _worth_it(self) -> bool:
        job = self._present.job
        # A shard ends when its coordinator says so, or does not come back in time.
        return job is None or self._patience.ended(job.coordinator.state.version)

    def _run_recovering(self) -> ExitCode:
        """Run the next generation at the same addresses, in the same folder, as soon as the port is free. Raises as
        `Server.run`."""
        before = self._present
        folder, terms = before.folder, before.settings.terms
        settings = self._again()
        settings = replace(
            settings,
            terms=replace(settings.terms, min_workers=terms.min_workers, predecessors=terms.predecessors),
            hosts=before.continuation.hosts,
            metrics_port=before.metrics_port,
            out=before.settings.out,
            resume=_resumed(before.settings),
            recover=before.continuation.recover,
            again=True,
            former=before.host.job or before.settings.former,
        )
        # Free its arrays before the checkpoint is read.
        del before
        deadline = running.now() + PORT_PATIENCE
        while True:
            self._present = Server(settings, self._announce, self._out, folder, self._runtime())
            gc.unfreeze()
            gc.collect()
            # A signal from here on is this server's.
            if self._signal is not None:
                return self._stopped()
            try:
                return self._present.run()
            except BindError:
                if self._signal is not None:
                    return self._stopped()
                if running.now() > deadline:
                    raise
                time.sleep(PORT_PAUSE)


def _resumed(before: ServerSettings) -> str | None:
    """Return from which checkpoint a server begins again in the same process.

    With replicas it takes part as before. Only where the job may go back by itself, it does so if no copy is left.
    """
    if before.replicas > 1:
        return None if before.resume is None else AUTO
    return AUTO if before.task_index == 0 else None
