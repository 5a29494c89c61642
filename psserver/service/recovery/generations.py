"""One server after another on one address, in one process: what a supervisor does with processes, but sooner.

Nothing of a server that has lost another one is taken over into the next but its settings: all that counts is on the
disk. So there is one way to recover, whoever was lost, and a loss while it is under way is a loss like any other.
"""

import copy
import gc
import logging
import signal
import time
from dataclasses import replace
from types import FrameType

from psserver.policies import Policy
from psserver.service.deciding.making import Announce
from psserver.service.recovery.patience import Patience
from psserver.service.saving.going_on import AUTO
from psserver.service.server import Server
from psserver.service.server_settings import ServerSettings
from psserver.service.transport.listening import BindError
from pswire.exits import ExitCode
from pswire.logs.events import event

log = logging.getLogger("ps-server")

# The port of a server that has ended is free soon; in seconds.
PORT_PATIENCE, PORT_PAUSE = 10.0, 0.05


class Generations:
    """Runs servers with those settings until one of them ends for good. As `Server`, of which it is the owner."""

    def __init__(self, settings: ServerSettings, announce: Announce) -> None:
        self._announce = announce
        self._settings = settings
        # A policy decides by what it has seen; each generation begins with one that has seen nothing.
        self._policy = self._unused(settings) if settings.recover else None
        if self._policy is None:
            self._settings = replace(settings, recover=0.0)
        self._patience = Patience()
        self._signal: int | None = None
        self.server = Server(self._settings, announce)

    def _unused(self, settings: ServerSettings) -> Policy | None:
        try:
            return copy.deepcopy(settings.policy)
        except Exception as error:
            # Anybody's code: it may hold what cannot be copied.
            told = event("policy_not_copied", policy=settings.policy.name)
            log.warning(
                "policy %s cannot be copied (%s: %s): the loss of a server ends this job",
                *(settings.policy.name, type(error).__name__, error),
                extra=told,
            )
            return None

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """A signal handler, as `Server.interrupt`."""
        self._signal = number
        self.server.interrupt(number, frame)

    def run(self) -> ExitCode:
        """As `Server.run`, of the last one."""
        code = self.server.run()
        while self.server.again is not None and self._worth_it():
            if self._signal is not None:
                return ExitCode.INTERRUPTED if self._signal == signal.SIGINT else ExitCode.TERMINATED
            log.warning(
                "%s: beginning again from what is saved", self.server.again, extra=event("begins_again")
            )
            self._announce("recovering", {"reason": self.server.again})
            code = self._run_next()
        if self.server.again is not None:
            reason = f"{self.server.again}; the job makes no progress"
            self._announce("stopped", {"reason": reason, "exit_code": int(code)})
        return code

    def _worth_it(self) -> bool:
        job = self.server.job
        # A shard ends when its coordinator says so, or does not come back in time.
        return job is None or self._patience.ended(job.coordinator.version)

    def _run_next(self) -> ExitCode:
        before = self.server
        hosts = list(before.settings.hosts)
        hosts[before.settings.task_index] = before.address
        settings = replace(
            self._settings,
            hosts=tuple(hosts),
            policy=self._settings.policy if self._policy is None else copy.deepcopy(self._policy),
            metrics_port=before.metrics_port,
            recover=before.recover,
            resume=AUTO if before.settings.task_index == 0 else None,
            again=True,
            former=before.host.job or before.settings.former,
        )
        del before
        deadline = time.monotonic() + PORT_PATIENCE
        while True:
            self.server = Server(settings, self._announce)
            # The arrays of the one before.
            gc.collect()
            try:
                return self.server.run()
            except BindError:
                if time.monotonic() > deadline or self._signal is not None:
                    raise
                time.sleep(PORT_PAUSE)
