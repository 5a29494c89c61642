"""The coordinator: a deterministic state machine that takes one input at a time and answers with outputs in order."""

from collections.abc import Callable, Mapping
from typing import Any, Final, assert_never

from psserver.coordinator import inputs
from psserver.coordinator.contributions import Contributions, present_rate
from psserver.coordinator.dealer import Dealer
from psserver.coordinator.driver import PolicyDriver
from psserver.coordinator.inputs import Input
from psserver.coordinator.ledger import Ledger
from psserver.coordinator.lifecycle import Lifecycle
from psserver.coordinator.membership import Membership
from psserver.coordinator.outputs import Declined, Output
from psserver.coordinator.roster import Member
from psserver.coordinator.saving import policy_state, resumed
from psserver.coordinator.state import JobState
from psserver.coordinator.terms import JobTerms
from psserver.coordinator.units import WorkError
from psserver.coordinator.waits import Wait, waits
from psserver.decisions import entries
from psserver.policies import Policy, PolicyError, microseconds
from psserver.policies.policy import config_of
from psserver.records import to_plain
from pswire import protocol

__all__ = ["Coordinator", "JobTerms"]


class Coordinator:
    """Membership, tickets and one policy.

    Its parts are a `Ledger` (changes of the state that write log entries), a `PolicyDriver` (the policy and its
    decisions), a `Lifecycle` (beginning and end), a `Membership`, a `Dealer` (work units), and `Contributions`
    (requests and commits of members). Each uses those before it; none uses the `Membership`. They share one `JobState`.

    `state`: read only, between two inputs. `given`: the state of another process to continue from; it belongs to this
    coordinator from then on. The same inputs then lead to the same outputs as before. Members are as they were; give
    `Disconnected` for each whose connection is gone.

    Raises StateError for a state that does not fit the terms or the policy with which the job began.
    """

    def __init__(self, terms: JobTerms, policy: Policy, given: JobState | None = None) -> None:
        self.state = job = given or JobState.new(terms, policy.name, to_plain(policy.knobs))
        present = policy if given is None else resumed(given, terms, policy)
        self._ledger = Ledger(terms, job)
        self._driver = PolicyDriver(present, self._ledger)
        self._lifecycle = Lifecycle(self._ledger, self._driver)
        self._membership = Membership(self._ledger, self._driver, self._lifecycle)
        self._dealer = Dealer(self._ledger, self._driver, self._lifecycle)
        self._contributions = Contributions(self._ledger, self._driver, self._lifecycle, self._dealer)

    # The one way in

    def take(self, given: Input, now: float) -> list[Output]:
        """Take an input at `now`, in seconds of the job, which never go back. The state is consistent afterwards.

        Inputs of an unknown or superseded incarnation are answered by a fatal refusal and change nothing.
        """
        handler = HANDLERS[type(given)]
        if given.told:
            self.state.now = now
            handler(self, given, now)
            return []
        # Not before an input after which the policy decides nothing new.
        timers = self.state.timers
        if timers.pending and not isinstance(given, _WITHOUT_TIMERS):
            self._driver.fire(now)
        self.state.now = now
        handler(self, given, now)
        # A work unit may have returned to the queue.
        self._dealer.resume_standby(now)
        self._driver.step_over(now)
        if timers.pending or timers.paused_since is not None:
            self._driver.pause_timers(now)
        return self._ledger.emit()

    # Reading

    @property
    def terms(self) -> JobTerms:
        """The terms that the job was started with."""
        return self._ledger.terms

    @property
    def policy(self) -> Policy:
        """The policy that decides at present."""
        return self._driver.policy

    @property
    def missing(self) -> int:
        """The number of workers that the start still waits for."""
        return self._lifecycle.missing

    @property
    def change(self) -> str:
        """Known changes of the policy, as a sentence; empty if none waits, overlaps or is planned."""
        return self._driver.describe_change()

    @property
    def settable_rate(self) -> float | None:
        """The present learning rate if a commit may change it; else None."""
        return present_rate(
            self.state.proposal.optimizer, self.state.lr_scale, self.policy.tensors.aggregator
        )

    @property
    def rejoin_limit(self) -> float:
        """Seconds that a lost worker with data left has to come back at the end of the job."""
        return self._ledger.rejoin_limit

    @property
    def due(self) -> float | None:
        """When the next timer fires, in seconds of the job; None if none is set or job time stands still."""
        due = self.state.timers.due
        return None if due is None or self.state.stopped is not None else due / 1e6

    def remaining(self, tag: str, now: float) -> float | None:
        """Return the seconds until a timer fires, 0 if it is due; None if it is not set."""
        timers, present = self.state.timers, microseconds(self._driver.time(now))
        at = timers.pending.get(tag)
        if at is None:
            return None
        return max(0, at - (present if timers.paused_since is None else timers.paused_since)) / 1e6

    def waits(self, now: float) -> list[Wait]:
        """Return what the job waits for live members to do, and for how long at most."""
        return list(waits(self._ledger, self._driver, now))

    def unknown_session(self, worker: str, incarnation: int, session: str) -> str | None:
        """Return why the process with this `session` is not that member; None if it is."""
        member = self.state.roster.member(worker, incarnation)
        if member is not None and member.session == session:
            return None
        return self._ledger.unknown(worker, incarnation)

    def abandoned(self, now: float) -> bool:
        """Return whether no worker has been there for as long as the job waits for one, which ends it."""
        idle, empty_since = self.terms.idle_timeout, self.state.roster.empty_since
        return self.state.stopped is None and empty_since is not None and 0 < idle <= now - empty_since

    def saved(self) -> dict[str, Any]:
        """Return all that it and its policy remember, as data for `json.dumps(..., allow_nan=False)`.

        `JobState.read` reads it. Raises StateError for a policy that cannot be saved.
        """
        self.state.policy.remembers = policy_state(self.policy)
        found: dict[str, Any] = to_plain(self.state)
        return found

    # Handlers: the job

    def _opened(self, given: inputs.Opened, now: float) -> None:
        terms, policy = self.terms, self.policy
        local = policy.local_rule
        entry = entries.Job(
            terms.job,
            config_of(policy),
            terms.servers,
            terms.workers,
            terms.seed,
            tensors=policy.tensors.config or None,
            local=None if local.plain else {"name": local.name, **local.knobs},
            min_workers=None if terms.quorum == terms.workers else terms.quorum,
        )
        self._ledger.record(entry, 0.0)

    def _model_proposed(self, given: inputs.ModelProposed, now: float) -> None:
        self.state.proposal = given.proposal

    def _resumed(self, given: inputs.Resumed, now: float) -> None:
        self.state.expected = given.expected
        self.state.kept_back.go_on(self.state.version)
        self._membership.resume(given.rolled_back, now)

    def _stopping(self, given: inputs.Stopping, now: float) -> None:
        self._ledger.stop(given.reason, now, success=given.success, cause=given.cause)

    # Handlers: members

    def _join_asked(self, given: inputs.JoinAsked, now: float) -> None:
        self._ledger.answer(self._membership.join(given, now))

    def _connected(self, given: inputs.Connected, now: float) -> None:
        member = self.state.roster.member(given.worker, given.incarnation)
        if member is None or member.session != given.session:
            self._ledger.refuse_unknown_session(given.worker, given.incarnation)
        else:
            self._membership.connect(member, now)

    def _disconnected(self, given: inputs.Disconnected, now: float) -> None:
        member = self.state.roster.member(given.worker, given.incarnation)
        if member is not None:
            self._membership.disconnect(member, now)

    def _requested(self, given: inputs.Requested, now: float) -> None:
        member = self.state.roster.member(given.worker, given.incarnation)
        if member is not None:
            self._answer(member, given, now)
        elif not isinstance(given.request, protocol.Leave):
            self._ledger.refuse_unknown_session(given.worker, given.incarnation)

    def _answer(self, member: Member, given: inputs.Requested, now: float) -> None:
        contributions, request = self._contributions, given.request
        match request:
            case protocol.Commit():
                contributions.commit(member, request, given.norm, now)
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

    def _data_sized(self, given: inputs.DataSized, now: float) -> None:
        self.state.extents[given.worker] = given.extent

    def _work_declared(self, given: inputs.WorkDeclared, now: float) -> None:
        try:
            if given.terms is not None:
                given.terms.check()
        except WorkError as error:
            self._ledger.answer(Declined(str(error)))
        else:
            self._dealer.declare(given.terms, now)

    # Handlers: versions

    def _executed(self, given: inputs.Executed, now: float) -> None:
        kept = self.state.kept_back
        if given.version <= kept.told:
            return
        entry = kept.take(given)
        if entry is not None:
            self._ledger.record(entry, now)
            reason = kept.diverged(self.terms.nonfinite_limit)
            if reason and self.state.stopped is None:
                self._ledger.stop(reason, now, success=False, cause="diverged")

    def _save_asked(self, given: inputs.SaveAsked, now: float) -> None:
        job = self.state
        if job.stopped is None and job.initialised and job.version > job.saved_version:
            self._ledger.checkpoint(now)

    def _save_failed(self, given: inputs.SaveFailed, now: float) -> None:
        self._ledger.unsaved(given.version, given.reason, now)

    # Handlers: time and people

    def _tick(self, given: inputs.Tick, now: float) -> None:
        self._membership.expire(now)
        self._lifecycle.start_when_complete(now)
        self._lifecycle.finish_when_done(now)
        if self.abandoned(now):
            reason = f"no worker for {self.terms.idle_timeout:g} s"
            self._ledger.stop(reason, now, success=False, cause="abandoned")

    def _note_added(self, given: inputs.NoteAdded, now: float) -> None:
        if self.state.stopped is None:
            self._ledger.record(entries.Note(given.text), now)

    def _change_asked(self, given: inputs.ChangeAsked, now: float) -> None:
        try:
            self._driver.change(given, now)
        except PolicyError as error:
            self._ledger.answer(Declined(str(error)))


# What a resumed job writes first is that it has resumed, and what is saved or ended is what there is.
_WITHOUT_TIMERS: Final = (inputs.Resumed, inputs.Stopping, inputs.SaveAsked)

HANDLERS: Final[Mapping[type[Input], Callable[[Coordinator, Any, float], None]]] = {
    inputs.Opened: Coordinator._opened,
    inputs.ModelProposed: Coordinator._model_proposed,
    inputs.Resumed: Coordinator._resumed,
    inputs.Stopping: Coordinator._stopping,
    inputs.JoinAsked: Coordinator._join_asked,
    inputs.Connected: Coordinator._connected,
    inputs.Disconnected: Coordinator._disconnected,
    inputs.Requested: Coordinator._requested,
    inputs.DataSized: Coordinator._data_sized,
    inputs.WorkDeclared: Coordinator._work_declared,
    inputs.Executed: Coordinator._executed,
    inputs.SaveAsked: Coordinator._save_asked,
    inputs.SaveFailed: Coordinator._save_failed,
    inputs.Tick: Coordinator._tick,
    inputs.NoteAdded: Coordinator._note_added,
    inputs.ChangeAsked: Coordinator._change_asked,
}
