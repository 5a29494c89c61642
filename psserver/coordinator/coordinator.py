"""The coordinator: every method takes one input and answers with outputs in order."""

import functools
import inspect
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import ParamSpec, assert_never

from psserver.coordinator.assurance import Assurance, Certain
from psserver.coordinator.changes import Change
from psserver.coordinator.ledger import Ledger
from psserver.coordinator.lifecycle import Lifecycle
from psserver.coordinator.members.membership import Membership
from psserver.coordinator.members.roster import Member
from psserver.coordinator.outputs import JoinDeferred, Output
from psserver.coordinator.policy_driver import PolicyDriver
from psserver.coordinator.progress import Extent
from psserver.coordinator.state import CoordinatorState, restore, save
from psserver.coordinator.terms import JobTerms
from psserver.coordinator.tickets.contributions import Contributions
from psserver.coordinator.view import CoordinatorView
from psserver.coordinator.work.dealer import Dealer
from psserver.coordinator.work.units import WorkTerms
from psserver.policies import Policy, microseconds
from psserver.policies.policy import config_of
from pswire import protocol
from pswire.decisions import entries
from pswire.records import StateError

__all__ = ["Coordinator", "JobTerms"]

_Input = ParamSpec("_Input")


def _in_order(take: Callable[_Input, list[Output]]) -> Callable[_Input, list[Output]]:
    """Fire due timers before an input, and defer one that arrives during a trial until the shards have answered.

    The deferred input is unchanged except for `now`, which becomes the time of the answer.
    """
    signature = inspect.signature(take)

    @functools.wraps(take)
    def taken(*args: _Input.args, **kwargs: _Input.kwargs) -> list[Output]:
        coordinator = args[0]
        assert isinstance(coordinator, Coordinator)
        if coordinator._driver.timers.pending:
            # `now` is the last argument that has a place.
            coordinator._driver.fire(kwargs["now"] if "now" in kwargs else args[-1])  # type: ignore[arg-type]
        if not coordinator.trying:
            return take(*args, **kwargs)
        given = signature.bind(*args, **kwargs)

        def later(now: float) -> list[Output]:
            given.arguments["now"] = now
            return take(*given.args, **given.kwargs)

        coordinator._deferred.append(later)
        return coordinator._ledger.emit()

    return taken


class Coordinator(CoordinatorView):
    """Membership, tickets and one policy: a deterministic state machine.

    Its parts are a `Ledger` (facts of the job), a `PolicyDriver` (the policy and its decisions), a `Lifecycle`
    (beginning and end), a `Membership`, a `Dealer` (work units), and `Contributions` (requests and commits of
    members). Each uses those before it; none uses the `Membership`. After each input the state is
    consistent. `now` is any monotonic number of seconds. Inputs of an unknown or superseded
    incarnation are answered by a fatal refusal and change nothing.

    `assurance` knows which updates are certain to be finite. For any other update the outputs contain a `Trial`. Until
    `tried` answers it, inputs are deferred; they are then taken in order.
    """

    def __init__(
        self, terms: JobTerms, policy: Policy, now: float, assurance: Assurance | None = None
    ) -> None:
        self.terms = terms
        self._assurance = assurance or Certain()
        ledger = Ledger(terms, now)
        driver = PolicyDriver(policy, ledger, self._assurance)
        super().__init__(ledger, driver, Lifecycle(ledger, driver, self._assurance))
        # Inputs that arrived during a trial.
        self._deferred: deque[Callable[[float], list[Output]]] = deque()
        self._membership = Membership(self._ledger, self._driver, self._lifecycle)
        self._dealer = Dealer(self._ledger, self._driver, self._lifecycle)
        self._contributions = Contributions(self._ledger, self._driver, self._lifecycle, self._dealer)

    def agree(self, optimizer: Mapping[str, object]) -> None:
        """Set the job's optimizer if it was not known at the start. Call before `opening`."""
        self.terms = self._ledger.terms = replace(self.terms, optimizer=optimizer)

    def planned(self, transfer: float) -> None:
        """Learn from the model's size how many seconds a payload may be under way."""
        self.terms = self._ledger.terms = replace(self.terms, transfer=transfer)

    def opening(self) -> list[Output]:
        """Record the first log entry. Call once, before any other input."""
        terms, policy, ledger = self.terms, self.policy, self._ledger
        local = policy.local_rule
        ledger.record(
            entries.Job(
                terms.job,
                config_of(policy),
                terms.optimizer,
                terms.servers,
                terms.workers,
                terms.seed,
                tensors=policy.tensors.config or None,
                local=None if local.plain else {"name": local.name, **local.knobs},
                min_workers=None if terms.quorum == terms.workers else terms.quorum,
                adapt=None if self._driver.controller is None else self._driver.controller.config,
            ),
            ledger.began,
        )
        return ledger.emit()

    # State

    def state(self) -> CoordinatorState:
        """Return all that it and its policy remember, between two inputs.

        Raises StateError for a policy that cannot be saved, and during a trial.
        """
        if self.trying:
            raise StateError(
                "a trial of an update is under way: expected state() after the answer of the shards"
            )
        return save(self._ledger, self._driver)

    def restore(self, state: CoordinatorState, *, shift: float = 0.0) -> None:
        """Continue from a saved state: instead of `opening`, and before any input.

        `shift` is added to all times, because another process has another clock: it is `now` minus the time of the
        save by the old clock. The same inputs then lead to the same outputs as before.
        Members are as they were; call `disconnect` for each whose connection is gone.
        Raises StateError, with nothing changed, for a state that does not fit (see `psserver.coordinator.state`).
        """
        restore(state, self._ledger, self._driver, shift)
        if self._ledger.initialised:
            # The state has no bounds on the shards' numbers: the first update is tried.
            self._assurance.installed(False)

    def resume(self, rolled_back: int, now: float, expected: Collection[str] = ()) -> list[Output]:
        """Continue in new processes, right after `restore` of a checkpoint's state.

        Open tickets are cancelled and members leave; their commits stay. Grants begin again when as many
        workers are ready as at the start, or when all `expected` ones are, if any are given.
        `rolled_back`: the number of log entries that were lost.
        """
        self._ledger.expected = frozenset(expected)
        self._membership.resume(rolled_back, now)
        return self._emit(now)

    def checkpoint(self, now: float) -> list[Output]:
        """Order a checkpoint of the newest version unless it is saved or under trial, before a signal ends the job."""
        ledger = self._ledger
        if (
            ledger.stopped is None
            and not self.trying
            and ledger.initialised
            and ledger.version > ledger.saved_version
        ):
            ledger.checkpoint(now)
        return ledger.emit()

    @property
    def saved_version(self) -> int:
        """The version of the newest checkpoint that was ordered and has not failed; 0 before the first."""
        return self._ledger.saved_version

    def unsaved(self, version: int, reason: str, now: float) -> list[Output]:
        """Learn that a checkpoint failed; the next one is ordered sooner."""
        self._ledger.unsaved(version, reason, now)
        return self._ledger.emit()

    def interrupted(self, seconds: float) -> list[Output]:
        """Learn that nobody could decide for so long, up to the next input: job time stood still."""
        self._driver.timers.postpone(microseconds(seconds))
        return self._ledger.emit()

    # Another policy

    def change_policy(
        self, policy: Policy, now: float, *, by: str, why: str = "", rate: float | None = None
    ) -> list[Output]:
        """Let another policy decide as soon as no contribution waits for an update; see `changes`.

        If another change waits already, this one takes its place at once, and the contributions that wait are dropped.
        `rate`: factor of the job's learning rate from then on; None: as it is. Raises PolicyError, with nothing
        changed, while the job does not train, and for a policy that cannot take over or would make no update.
        """
        self._driver.check_change(policy, rate)
        if self._driver.timers.pending:
            self._driver.fire(now)
        self._driver.change(Change(policy, by, why, rate), now)
        return self._emit(now)

    def check_change(self, policy: Policy, rate: float | None = None) -> None:
        """Raise PolicyError if `change_policy` would."""
        self._driver.check_change(policy, rate)

    def measured(self, version: int, square: float) -> None:
        """Learn the square of the L2 norm of the weighted sum of gradients that made `version`, for the controller."""
        if self._driver.controller is not None:
            self._driver.controller.evidence.measured(version, square)

    @property
    def measures(self) -> bool:
        """Whether the controller needs measures of updates."""
        controller = self._driver.controller
        return controller is not None and controller.spec.measures

    def set_extent(self, worker: str, extent: Extent) -> None:
        """Learn how much data a worker has. Only the place of planned changes depends on it."""
        self._ledger.extents[worker] = extent

    # Work units

    def declare_work(self, terms: WorkTerms | None, now: float) -> list[Output]:
        """Declare how the job's data is dealt; None: it is not. Call before version 0; repeating it changes nothing.

        Raises WorkError for terms out of range, with nothing changed.
        """
        if terms is not None:
            terms.check()
        self._dealer.declare(terms, now)
        return self._ledger.emit()

    @property
    def work_terms(self) -> WorkTerms | None:
        """The terms of `declare_work`."""
        return None if self._ledger.work is None else self._ledger.work.terms

    def _emit(self, now: float) -> list[Output]:
        """End an input that may have returned a work unit to the queue."""
        if not self.trying:
            self._dealer.resume_standby(now)
            self._driver.step_over(now)
        timers = self._driver.timers
        if timers.pending or timers.paused_since is not None:
            self._driver.pause_timers(now)
        return self._ledger.emit()

    # Membership

    def join(
        self,
        worker: str,
        session: str,
        rank: int | None,
        now: float,
        *,
        remembers: bool = False,
        stays: bool = False,
        used: int = 0,
        computes: str = "",
        function: str = "",
        by: str = "",
    ) -> tuple[Member, list[Output]]:
        """Make a worker a member. Raises JoinRefused, with nothing changed, and JoinDeferred during a trial.

        An empty `worker` gets the name "w<rank>", a rank of None the lowest
        free one. The same `session` again is the same member. A present worker
        of the same name with another session is superseded; whether it may be is decided before
        (`psserver.service.job.names_in_use`).
        `remembers`: its codec derives payloads from earlier ones. `stays`: its process may take part in a further phase
        of the job. When all members are done, those that stay are notified, and the job continues when each of them
        has joined again or left; it ends when no member is left. `used`: for a session that joins again and does not
        go back, one past the last batch that it committed; batches of these that the log lacks are missing. `computes`:
        what it computes with, for people. `function`: what decides its model's function beside the variables
        (`psserver.coordinator.members.functions`); the same for all workers that name one. `by`: who joins, for a
        superseded worker ("another process (...)").
        """
        if self._driver.timers.pending:
            self._driver.fire(now)
        if self.trying:
            raise JoinDeferred("a trial of an update is under way; expected the Join again in a moment")
        member = self._membership.join(
            worker, session, rank, now, remembers, stays, used, computes, function, by
        )
        return member, self._emit(now)

    def unknown_session(self, worker: str, incarnation: int, session: str) -> str | None:
        """Return why the process with this `session` is not that member; None if it is."""
        member = self._ledger.member(worker, incarnation)
        if member is not None and member.session == session:
            return None
        return self._ledger.unknown(worker, incarnation)

    @_in_order
    def connect(self, worker: str, incarnation: int, session: str, now: float) -> list[Output]:
        """Note that the worker's session stream is up (again), and repeat what it may have missed."""
        member = self._ledger.member(worker, incarnation)
        if member is None or member.session != session:
            return self._ledger.refuse_unknown_session(worker, incarnation)
        self._membership.connect(member, now)
        return self._emit(now)

    def dismiss_absent(self, reason: str, now: float) -> list[Output] | None:
        """Make all members depart if no session stream is up; else return None, with nothing changed."""
        if self._membership.dismiss_absent(reason, now):
            return self._emit(now)
        return None

    @_in_order
    def disconnect(self, worker: str, incarnation: int, now: float) -> list[Output]:
        """Note that the stream broke. The worker may come back within the grace period (see `tick`)."""
        member = self._ledger.member(worker, incarnation)
        if member is not None:
            self._membership.disconnect(member, now)
        return self._emit(now)

    @_in_order
    def give_up(self, worker: str, reason: str, now: float) -> list[Output]:
        """Make a member depart that is alive but does not do its part. It may join again."""
        member = self._ledger.roster.present.get(worker)
        if member is not None:
            self._membership.depart(member, reason, now)
            self._lifecycle.start_when_complete(now)
        return self._emit(now)

    # Work

    @_in_order
    def handle(
        self,
        worker: str,
        incarnation: int,
        request: protocol.Request,
        now: float,
        *,
        ordinary: bool = True,
        norm: float = math.nan,
    ) -> list[Output]:
        """Take a request of this incarnation of a worker. A repeated request is answered again and counts once.

        `ordinary`, `norm`: from the receipts of a commit: whether the payload is ordinary (see `Assurance`), and the
        L2 norm of the gradient, NaN if there is none.
        Ready asks for the next ticket: the worker is idle, or works on ticket `holding` and asks ahead. If it already
        holds a later ticket, it is sent that one again. A policy that does not grant ahead ignores the request.
        Abandon of a settled ticket, such as a cancelled one, changes nothing. After Done a worker has no more data:
        barriers shrink, and the job ends when all workers are done, or at once if `ends` gives a reason; a ticket that
        the worker still holds is abandoned, because it may come from a repeated Ready. A Report changes nothing here.
        """
        member = self._ledger.member(worker, incarnation)
        if member is None and not isinstance(request, protocol.Leave):
            return self._ledger.refuse_unknown_session(worker, incarnation)
        if member is not None:
            self._take(member, request, ordinary, norm, now)
        return self._emit(now)

    def _take(
        self, member: Member, request: protocol.Request, ordinary: bool, norm: float, now: float
    ) -> None:
        contributions = self._contributions
        match request:
            case protocol.Commit():
                contributions.commit(member, request, ordinary, norm, now)
            case protocol.Ready(holding):
                contributions.ready(member, holding, now)
            case protocol.Abandon(ticket, reason, ends):
                contributions.abandon(member, ticket, reason, now, ends=ends)
            case protocol.Done(ends):
                contributions.done(member, now, ends)
            case protocol.Leave(reason):
                self._membership.depart(member, reason or "left", now)
                self._lifecycle.start_when_complete(now)
            case protocol.Report():
                pass
            case _:
                assert_never(request)

    # Time and the outside world

    @_in_order
    def note(self, text: str, now: float) -> list[Output]:
        """Record an operator's remark, without further effect. Ignored once the job has stopped."""
        if self.stopped is None:
            self._ledger.record(entries.Note(text), now)
        return self._emit(now)

    def tick(self, now: float) -> list[Output]:
        """Let time pass: evict absent members, detect the end. Call at least once a second."""
        self._driver.fire(now)
        if self.trying:
            return self._emit(now)
        self._membership.expire(now)
        self._lifecycle.start_when_complete(now)
        self._lifecycle.finish_when_done(now)
        if self.abandoned(now):
            reason = f"no worker for {self.terms.idle_timeout:g} s"
            self._ledger.stop(reason, now, success=False, cause="abandoned")
        return self._emit(now)

    def abandoned(self, now: float) -> bool:
        """Return whether no worker has been there for as long as the job waits for one, which ends it."""
        idle, empty_since = self.terms.idle_timeout, self._ledger.roster.empty_since
        return self.stopped is None and empty_since is not None and 0 < idle <= now - empty_since

    def stop(self, reason: str, now: float, *, success: bool, cause: str) -> list[Output]:
        """End the job from outside (a signal, a lost server)."""
        self._driver.drop_trial()
        self._ledger.stop(reason, now, success=success, cause=cause)
        return [*self._emit(now), *self._take_deferred(now)]

    # Updates that may not be finite

    def tried(self, trial: int, finite: bool, largest: float, now: float) -> list[Output]:
        """Take the answer to a `Trial`: whether the update is finite on every shard. An outdated answer is ignored.

        `largest`: the largest magnitude on any shard after the update, in weights and slots.
        """
        pending = self._driver.trial
        if pending is None or pending.number != trial:
            return []
        self._driver.settle_trial(finite, largest, now)
        if not self.trying:
            self._lifecycle.finish_when_done(now)
            self._driver.check_deadlock(now)
        return [*self._emit(now), *self._take_deferred(now)]

    def _take_deferred(self, now: float) -> list[Output]:
        """Take the deferred inputs as if they arrived now, up to the next trial."""
        outputs: list[Output] = []
        while self._deferred and not self.trying:
            if self._driver.timers.pending:
                self._driver.fire(now)
            if self.trying:
                outputs += self._ledger.emit()
            else:
                outputs += self._deferred.popleft()(now)
        return outputs
