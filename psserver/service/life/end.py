"""Whether a server of a job with replicas ends before the job is over, and why."""

from typing import Final

from psserver.service.job.job import ServedJob
from psserver.service.job.log_file import LogError
from psserver.service.life.job_loop import Continuation
from psserver.service.life.settings import ServerSettings
from psserver.service.replicas.copy import LogCopy
from psserver.service.replicas.disk import Promises
from psserver.service.replicas.followers import PartFollower
from psserver.service.replicas.links import Links
from psserver.service.replicas.logs import FIRST, Logs
from psserver.service.replicas.part import PartCopy
from psserver.service.replicas.payloads import ReplicatedHost
from psserver.service.replicas.same import OtherSettingsError
from pswire.exits import ExitCode

# Least seconds that a server waits without hearing of a primary.
LEAST_PATIENCE: Final = 60.0
# Seconds between two looks whether a part that nobody serves is lost.
LOOK_FOR_LOSS: Final = 1.0
# Seconds after which a server that was heard counts as silent.
LATELY: Final = 1.0


class JobEnd:
    """What this server knows of an end: its own, or that of the job. The loop's thread owns it.

    `told`: the exit code and reason of the job, from the server that led it. `lost`: the part of which no copy is left.
    """

    def __init__(
        self,
        settings: ServerSettings,
        host: ReplicatedHost,
        continuation: Continuation,
        copy: LogCopy | PartCopy,
        logs: Logs,
        promises: Promises,
        links: Links,
    ) -> None:
        self._settings, self._host = settings, host
        self._continuation, self._copy = continuation, copy
        self._logs, self._promises, self._links = logs, promises, links
        self.told: tuple[ExitCode, str] | None = None
        self.lost: int | None = None
        self._look_at = 0.0
        # When another server was heard last, and when one last showed that it leads the job.
        self._heard = self._led_at = self._host.runtime.now()

    def hear(self) -> None:
        """Note that another server is there."""
        self._heard = self._host.runtime.now()

    @property
    def heard_lately(self) -> bool:
        return self._host.runtime.now() - self._heard < LATELY

    def found(self) -> tuple[ExitCode, str] | None:
        """Return why this server ends, if it does."""
        copy, signal = self._copy, self._continuation.signal
        if self.told is not None:
            return self.told
        if signal is not None:
            code = ExitCode.INTERRUPTED if signal == "SIGINT" else ExitCode.TERMINATED
            return code, f"stopped by {signal}"
        if isinstance(copy.failure, OtherSettingsError):
            return ExitCode.USAGE, str(copy.failure)
        if isinstance(copy.failure, LogError):
            return copy.failure.code, str(copy.failure)
        if copy.failure is not None:
            return ExitCode.INTERNAL, f"this copy cannot go on: {copy.failure}"
        if copy.deposed:
            return (
                ExitCode.REFUSED,
                f"this copy does not count any more: another server leads since term {copy.deposed}",
            )
        if self._leaderless and (end := self._promises.read_end(self._logs.generation)):
            code, reason = end
            return code, f"the job had ended before this server came ({reason}); --resume latest trains on"
        if self.lost is not None and not self._returns and self._leaderless:
            # Whoever leads ends the job, and needs a majority for that.
            return ExitCode.UNREACHABLE, f"{self.loss}: {self._advice}"
        return self._alone()

    def _alone(self) -> tuple[ExitCode, str] | None:
        if len(self._links.hosts) <= len(FIRST):
            # One of two servers holds the only copy, and waits for the other one or for a person.
            return None
        now, patience = self._host.runtime.now(), max(self._settings.terms.idle_timeout, LEAST_PATIENCE)
        if now - self._heard > patience:
            return ExitCode.UNREACHABLE, f"no other server of the job was heard for {patience:g} s"
        if now - self._led_at > patience:
            return ExitCode.UNREACHABLE, f"no server has led the job for {patience:g} s"
        return None

    @property
    def _leaderless(self) -> bool:
        """Whether nobody has shown for a while that it leads the job."""
        return self._logs.shells[0].watch.leaderless(self._logs.primary(0), self._host.runtime.now())

    # A part without a copy

    @property
    def _returns(self) -> bool:
        """Whether this server goes on from a checkpoint by itself where no copy is left."""
        return self._settings.resume is not None

    @property
    def goes_back(self) -> bool:
        """Whether it does so now."""
        return self._returns and self.lost is not None

    @property
    def loss(self) -> str:
        """What is lost, for people."""
        where = f"part {self.lost} of the model" if self._logs.parts > 1 else "the job"
        return f"no server has a copy of {where} any more"

    @property
    def _advice(self) -> str:
        """What a person can do when a part is lost."""
        store = self._host.saver.store
        if store is not None and store.names():
            return "start all servers with --resume latest, to go on from the newest checkpoint"
        return "there is no checkpoint, so begin anew in another folder"

    def look_for_loss(self, job: ServedJob | None) -> None:
        """Look whether a part that nobody serves is lost: what all servers have on their disks says so. `job`: if this
        server leads it."""
        now = self._host.runtime.now()
        self._led_at = self._led_at if self._leaderless else now
        if self.lost is not None or now < self._look_at or not self._logs.unserved():
            return
        self._look_at = now + LOOK_FOR_LOSS
        self.lost = self._logs.lost_part()
        if self.lost is None:
            return
        self._continuation.wake.set()
        if job is not None and not self._returns:
            followers = {each.server: each for each in job.routes.followers}
            follower = followers[self.lost]
            assert isinstance(follower, PartFollower)
            follower.lose(f"no server has a copy of it any more: {self._advice}")
