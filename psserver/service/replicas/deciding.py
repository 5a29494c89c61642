"""Decisions of a job with replicas: nothing of them leaves before all copies hold the input."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from psserver.coordinator import Coordinator, Input, Output
from psserver.coordinator.inputs import Disconnected, Opened
from psserver.coordinator.terms import Stopped
from psserver.records import StateError
from psserver.service.job.decider import Decider, JobFailure, ordered_checkpoint
from psserver.service.job.log_file import LogError, TakenOverError
from psserver.service.replicas import inputs
from psserver.service.replicas.followers import PartFollower
from psserver.service.replicas.inputs import Configured, HeldEntries, Noted
from pswire import protocol
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

Hold = Callable[[bytes, Callable[[], None]], None]
"""Takes an input, and what is to be done once all copies hold it."""


class _Outcome:
    """What a request leads to, which leaves once all copies hold the request. `release`: None until it is decided, and
    if that fails, which ends the job."""

    release: Callable[[], None] | None = None

    def held(self) -> None:
        if self.release is not None:
            self.release()


class ReplicatedDecider(Decider):
    """A decider that leads, or takes again what another one has decided. The loop's thread owns it.

    `hold`: as of `Hold`. `copied`: whether another server has a copy. `stable`: waits until the copies hold
    all that was given to `hold`. `saves`: called with each entry that orders a checkpoint.
    """

    replicated = True

    def __init__(
        self,
        *given: Any,
        hold: Hold,
        copied: Callable[[], bool],
        stable: Callable[[], Awaitable[None]],
        saves: Callable[[int], None],
    ) -> None:
        self._hold, self._copied = hold, copied
        self._stable, self._saves = stable, saves
        self.leads = False
        # What the copies do not have yet; None while another server leads.
        self._notes: list[Noted] | None = None
        # The job's time when the server that led last took an input.
        self._heard: float | None = None
        self._stopped: Stopped | None = None
        # Whether a worker's request is being decided, and what it leads to if the copies have been sent it.
        self._handling = False
        self._outcome: _Outcome | None = None
        self._state: Callable[[], dict[str, Any]] | None = None
        # The model, once a worker has named it; and models that the other parts are told with the next outputs.
        self.model: shard_pb2.Configure | None = None
        self._models: list[shard_pb2.Configure] = []
        # Called behind each input; and with the newest version and the number of entries sent, when they may be told.
        self.decided: Callable[[Coordinator], object] = lambda coordinator: None
        self.made: Callable[[int, int], object] = lambda version, entries: None
        super().__init__(*given)

    def hear(self, now: float) -> None:
        super().hear(now)
        self._heard = now

    @property
    def stopped(self) -> Stopped | None:
        return self._stopped

    async def take(self, worker: str, incarnation: int, commit: protocol.Commit, norm: float) -> None:
        await super().take(worker, incarnation, commit, norm)
        await self._stable()

    async def settled(self) -> bool:
        await self._stable()
        return await super().settled()

    def begin(self) -> None:
        """Decide, as the first one of a job."""
        self.leads, self._notes = True, []

    @property
    def busy(self) -> bool:
        """Whether it is in the middle of something that the copies have not been sent. A fact may be told twice."""
        return any(not (isinstance(each, tuple) and each[1].told) for each in self._notes or ())

    def lead(self) -> None:
        """Decide from now on. Whoever had a session with another server has none here yet."""
        self.begin()
        if self._heard is not None:
            # Nobody could decide since then, so the job stood still.
            self.hear(self._heard)
        if not self.coordinator.state.entries:
            # The first primary was lost before it could begin.
            self.input(Opened())
        # Each has `worker_timeout` to come here. A worker that does not hear that the former primary stands still needs
        # two thirds of that to notice, as for any silent connection.
        present, terms = self.coordinator.state.roster.present.values(), self.agreement.terms
        if present:
            missing = partial(self._missing, [(member.worker, member.incarnation) for member in present])
            self.host.runtime.loop.call_later(terms.worker_timeout - terms.grace, missing)
        # What the server that led before was told, and could not pass on.
        self.tell()
        if self.coordinator.state.over:
            self._end()

    def _missing(self, members: Sequence[tuple[str, int]]) -> None:
        """Note that those of the members are lost which have not come here."""
        for worker, incarnation in members:
            if (worker, incarnation) not in self.routes.outboxes:
                self.input(Disconnected(worker, incarnation))

    # Leading

    def give(self, given: Input) -> list[Output]:
        now = self.now()
        if self._notes is not None:
            self._notes.append((now, given))
            self._noted()
        return self.coordinator.take(given, now)

    def handle(self, *given: Any, **named: Any) -> None:
        """Take a worker's request. It goes to the copies first, so that they take it while it is decided here."""
        self._handling = True
        try:
            super().handle(*given, **named)
        finally:
            self._handling, self._outcome = False, None

    def _noted(self) -> None:
        # Without a copy it would be executed at once, before it is decided.
        if self._handling and self._outcome is None and self._copied():
            self._outcome = _Outcome()
            self._hold(self._to_hold(), self._outcome.held)

    def _to_hold(self) -> bytes:
        notes, self._notes = self._notes or [], []
        return inputs.encode([*notes, *self._told()], self.now())

    def _decided(self, outputs: list[Output]) -> None:
        version, stopped, over = (
            self.coordinator.state.version,
            self.coordinator.state.stopped,
            self.coordinator.state.over,
        )
        self.decided(self.coordinator)
        # By the time it is released, the coordinator may have gone on.
        state = self._captured() if self.leads and ordered_checkpoint(outputs) else None
        models, self._models = self._models, []
        release = partial(self._release, outputs, version, stopped, over, state, models)
        if not self.leads:
            release()
        elif self._outcome is None:
            self._hold(self._to_hold(), release)
        else:
            self._outcome.release = release
            self._handling, self._outcome = False, None

    def _told(self) -> list[Noted]:
        """Return how many entries the copies of each other part have, for a server that may lead next."""
        followers = self.routes.followers
        return [HeldEntries([each.executed for each in followers])] if followers else []

    def _captured(self) -> Callable[[], dict[str, Any]]:
        """Return what gives the present state later, or raises StateError as it would now."""
        try:
            state = self.coordinator.saved()
        except StateError as error:
            reason = str(error)

            def failed() -> dict[str, Any]:
                raise StateError(reason)

            return failed
        return lambda: state

    def _state_to_save(self) -> dict[str, Any]:
        return super()._state_to_save() if self._state is None else self._state()

    def _save(self, outputs: list[Output]) -> None:
        record = ordered_checkpoint(outputs)
        if record is not None:
            self._saves(record.index)
            if self.leads:
                super()._save(outputs)

    def _carry_out(self, outputs: list[Output], version: int) -> None:
        super()._carry_out(outputs, version)
        self.made(version, self.routes.sent)

    def _release(
        self,
        outputs: list[Output],
        version: int,
        stopped: Stopped | None,
        over: bool,
        state: Callable[[], dict[str, Any]] | None,
        models: Sequence[shard_pb2.Configure],
    ) -> None:
        """All copies hold the input: let its outputs go. `state`: behind it, if it ordered a checkpoint and this
        server decided that itself."""
        if self.failure is not None:
            return
        self._stopped, self._state = stopped, state
        for model in models:
            super().configure(model)
        try:
            self._carry_out(outputs, version)
        except LogError as error:
            self.fail(str(error), error.code)
        except Exception as error:
            log.exception("a decision cannot be carried out", extra=event("decision_failed"))
            self.fail(f"a decision failed: {type(error).__name__}: {error}", ExitCode.INTERNAL)
        else:
            self.execute()
            if over and self.leads:
                self._end()

    def fail(self, reason: str, code: ExitCode) -> None:
        """End the job, but for one that another server goes on with: its workers hear nothing from this one."""
        if code == TakenOverError.code:
            self.failure = JobFailure(reason, code)
            self._end()
        else:
            super().fail(reason, code)

    def configure(self, message: shard_pb2.Configure) -> None:
        """Have the copies take the model again, behind what the log has."""
        self.model = message
        if self._notes is None:
            # A checkpoint's, before this server leads.
            super().configure(message)
            return
        self._notes.append(Configured(message.SerializeToString()))
        self._models.append(message)

    def tell(self) -> None:
        if self.leads:
            super().tell()

    # Following

    def _followers(self) -> list[PartFollower]:
        return [each for each in self.routes.followers if isinstance(each, PartFollower)]

    def take_again(
        self, noted: Sequence[Noted], now: float, configure: Callable[[shard_pb2.Configure], None]
    ) -> None:
        """Decide what the primary has decided; `now`: when it did, by the job's clock."""
        self.hear(now)
        taken: list[tuple[float, Input]] = []
        for each in noted:
            if isinstance(each, Configured):
                self.model = shard_pb2.Configure.FromString(each.model)
                configure(self.model)
                self._models.append(self.model)
            elif isinstance(each, HeldEntries):
                for follower, entries in zip(self._followers(), each.entries, strict=True):
                    follower.hold(entries)
            else:
                taken.append(each)

        def decide() -> list[Output]:
            return [output for at, given in taken for output in self.coordinator.take(given, at)]

        super().step(decide)
        self.execute()
        self.facts.forget(self.coordinator.state.kept_back.told)
