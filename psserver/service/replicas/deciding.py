"""Decisions of a job with replicas: nothing of them leaves before all copies hold the input."""

import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from psserver.coordinator import Coordinator, CoordinatorState, JobTerms, JoinDeferred, JoinRefused, Output
from psserver.coordinator.terms import Stopped
from psserver.policies import Policy
from psserver.service.job.decider import Decider, Failure, ordered_checkpoint
from psserver.service.job.log_file import LogError, TakenOverError
from psserver.service.replicas import inputs
from psserver.service.replicas.followers import PartFollower
from psserver.service.replicas.inputs import Call, NotedCoordinator
from pswire import protocol, running
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.records import StateError
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# Inputs that others than the coordinator take.
NOT_COORDINATORS: Final = ("configure", "held")

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

    `began`: when the job began, by its clock: the first primary's, which each later one goes on with as its predecessor
    told it. `hold`: as of `Hold`. `copied`: whether another server has a copy. `stable`: waits until the copies hold
    all that was given to `hold`. `saves`: called with each entry that orders a checkpoint.
    """

    coordinator: NotedCoordinator
    kind = NotedCoordinator

    def __init__(
        self,
        *given: Any,
        began: float,
        hold: Hold,
        copied: Callable[[], bool],
        stable: Callable[[], Awaitable[None]],
        saves: Callable[[int], None],
    ) -> None:
        self._origin, self._hold, self._copied = began, hold, copied
        self._stable, self._saves = stable, saves
        # Seconds by which the job's clock is ahead of this machine's.
        self._ahead = 0.0
        self.leads = False
        # When this server took the newest input of another one that led; seconds, monotonic.
        self._heard: float | None = None
        self._stopped: Stopped | None = None
        # Whether a worker's request is being decided, and what it leads to if the copies have been sent it.
        self._handling = False
        self._outcome: _Outcome | None = None
        # The newest answer of this server's shard to a trial: number, whether finite, the largest magnitude.
        self._answer: tuple[int, bool, float] | None = None
        self._state: Callable[[], CoordinatorState] | None = None
        # The model, once a worker has named it; and models that the other parts are told with the next outputs.
        self.model: shard_pb2.Configure | None = None
        self._models: list[shard_pb2.Configure] = []
        # Called behind each input; and with the newest version and the number of entries sent, when they may be told.
        self.decided: Callable[[Coordinator], object] = lambda coordinator: None
        self.made: Callable[[int, int], object] = lambda version, entries: None
        super().__init__(*given)

    def now(self) -> float:
        return super().now() + self._ahead

    def hear(self, now: float) -> None:
        """Take the time from another server that leads."""
        self._heard = running.now()
        self._ahead = now - self._heard

    def _begun(self, terms: JobTerms, policy: Policy) -> Coordinator:
        self.began = self._origin
        return super()._begun(terms, policy)

    @property
    def stopped(self) -> Stopped | None:
        return self._stopped

    async def take(
        self, worker: str, incarnation: int, commit: protocol.Commit, *, ordinary: bool, norm: float
    ) -> None:
        await super().take(worker, incarnation, commit, ordinary=ordinary, norm=norm)
        await self._stable()

    async def settled(self) -> bool:
        await self._stable()
        return await super().settled()

    def begin(self) -> None:
        """Decide, as the first one of a job."""
        self._heard = None
        self._note()

    def _note(self) -> None:
        self.leads, self.coordinator.notes, self.coordinator.noted = True, [], self._noted

    def lead(self) -> None:
        """Decide from now on. Whoever had a session with another server has none here yet."""
        self._note()
        if self._heard is not None:
            nobody = running.now() - self._heard
            self.step(lambda: self.coordinator.interrupted(nobody))
        # Each has `worker_timeout` to come here. A worker that does not hear that the former primary stands still needs
        # two thirds of that to notice, as for any silent connection.
        present, terms = self.coordinator.roster.present.values(), self.agreement.terms
        if present:
            missing = partial(self._missing, [(member.worker, member.incarnation) for member in present])
            self.host.owner.loop.call_later(terms.worker_timeout - terms.grace, missing)
        if self._answer is not None and self.coordinator.trying:
            self.tried(0, *self._answer)
        if self.coordinator.over:
            self._end()

    def _missing(self, members: Sequence[tuple[str, int]]) -> None:
        """Note that those of the members are lost which have not come here."""
        for worker, incarnation in members:
            if (worker, incarnation) not in self.routes.outboxes:
                self.input(partial(_lost, worker, incarnation))

    # Leading

    def step(self, decide: Callable[[], list[Output]]) -> None:
        try:
            super().step(decide)
        except (JoinRefused, JoinDeferred):
            # It may have fired a timer, as it will on the copies.
            self._decided([])
            raise

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
        return inputs.encode([*self.coordinator.taken(), *self._told()], self.now())

    def _decided(self, outputs: list[Output]) -> None:
        version, stopped, over = self.coordinator.version, self.coordinator.stopped, self.coordinator.over
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

    def _told(self) -> list[Call]:
        """Return how many entries the copies of each other part have, for a server that may lead next."""
        followers = self.routes.followers
        return [Call("held", [each.executed for each in followers], {})] if followers else []

    def _captured(self) -> Callable[[], CoordinatorState]:
        """Return what gives the present state later, or raises StateError as it would now."""
        try:
            state = self.coordinator.state()
        except StateError as error:
            reason = str(error)

            def failed() -> CoordinatorState:
                raise StateError(reason)

            return failed
        return lambda: state

    def _state_to_save(self) -> CoordinatorState:
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
        state: Callable[[], CoordinatorState] | None,
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
            self.failure = Failure(reason, code)
            self._end()
        else:
            super().fail(reason, code)

    def configure(self, message: shard_pb2.Configure) -> None:
        """Have the copies take the model again, behind what the log has."""
        self.model = message
        if self.coordinator.notes is None:
            # A checkpoint's, before this server leads.
            super().configure(message)
            return
        model = base64.b64encode(message.SerializeToString()).decode()
        self.coordinator.notes.append(Call("configure", [model], {}))
        self._models.append(message)

    def tried(self, server: int, trial: int, finite: bool, largest: float) -> None:
        self._answer = trial, finite, largest
        if self.leads:
            super().tried(server, trial, finite, largest)

    def measured(self, server: int, version: int, square: float) -> None:
        if self.leads:
            super().measured(server, version, square)

    # Following

    def _followers(self) -> list[PartFollower]:
        return [each for each in self.routes.followers if isinstance(each, PartFollower)]

    def take_again(
        self, calls: Sequence[Call], now: float, configure: Callable[[shard_pb2.Configure], None]
    ) -> None:
        """Decide what the primary has decided; `now`: when it did, by the job's clock."""
        self.hear(now)
        for call in calls:
            if call.name == "configure":
                self.model = shard_pb2.Configure.FromString(base64.b64decode(call.given[0]))
                configure(self.model)
                self._models.append(self.model)
            elif call.name == "held":
                for follower, entries in zip(self._followers(), call.given, strict=True):
                    follower.hold(entries)
            elif call.name == "agree" and self._deferred:
                self.correct_optimizer(call.given[0])
        rest = [call for call in calls if call.name not in NOT_COORDINATORS]
        self.opened = self.opened or any(call.name == "opening" for call in rest)
        super().step(lambda: inputs.take(self.coordinator, rest))
        self.execute()


def _lost(worker: str, incarnation: int, coordinator: Coordinator, now: float) -> list[Output]:
    return coordinator.disconnect(worker, incarnation, now)
