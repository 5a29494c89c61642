"""The coordinator: every method is one input, and answers with outputs in order."""

import functools
import inspect
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import ParamSpec, assert_never

from psserver.coordinator.assurance import Assurance, Certain
from psserver.coordinator.ledger import Ledger
from psserver.coordinator.lifecycle import Lifecycle
from psserver.coordinator.members.membership import Membership
from psserver.coordinator.members.roster import Member
from psserver.coordinator.outputs import JoinDeferred, Output
from psserver.coordinator.policy_driver import PolicyDriver
from psserver.coordinator.state import CoordinatorState, save, take_up
from psserver.coordinator.terms import JobTerms
from psserver.coordinator.tickets.contributions import Contributions
from psserver.coordinator.view import CoordinatorView
from psserver.coordinator.work.dealer import Dealer
from psserver.coordinator.work.units import WorkTerms
from psserver.policies import Policy
from pswire import protocol
from pswire.decisions import entries
from pswire.records import StateError

__all__ = ["Coordinator", "JobTerms"]

_Input = ParamSpec("_Input")


def _after_trial(take: Callable[_Input, list[Output]]) -> Callable[_Input, list[Output]]:
    """Keep an input that comes while the shards are asked about an update, and take it, whole, after their answer.

    Only its time changes: `now` is then that of the answer.
    """
    signature = inspect.signature(take)

    @functools.wraps(take)
    def taken(*args: _Input.args, **kwargs: _Input.kwargs) -> list[Output]:
        coordinator = args[0]
        assert isinstance(coordinator, Coordinator)
        if not coordinator.trying:
            return take(*args, **kwargs)
        given = signature.bind(*args, **kwargs)

        def later(now: float) -> list[Output]:
            given.arguments["now"] = now
            return take(*given.args, **given.kwargs)

        coordinator._kept.append(later)
        return []

    return taken


class Coordinator(CoordinatorView):
    """Membership, tickets and one policy: a deterministic state machine.

    It is made of a `Ledger` (what is known of the job), a `PolicyDriver` (the policy and its decisions),
    a `Lifecycle` (beginning and end), a `Membership`, a `Dealer` (work units), and `Contributions` (what members ask
    for and bring). Each knows those before it, but the `Membership` is known to none. After each input the state is
    consistent again. `now` is any monotonic number of seconds. Inputs of an unknown or superseded
    incarnation are answered by a fatal refusal and change nothing.

    `assurance`: which updates are finite without asking. Of any other the outputs have a `Trial`; until `tried`
    answers it, inputs are kept, and taken in their order after the answer.
    """

    def __init__(
        self, terms: JobTerms, policy: Policy, now: float, assurance: Assurance | None = None
    ) -> None:
        self.terms = terms
        self.policy = policy
        self._assurance = assurance or Certain()
        ledger = Ledger(terms, now)
        driver = PolicyDriver(policy, ledger, self._assurance)
        super().__init__(ledger, driver, Lifecycle(ledger, driver, self._assurance))
        # Inputs that came while the shards are asked about an update.
        self._kept: deque[Callable[[float], list[Output]]] = deque()
        self._membership = Membership(self._ledger, self._driver, self._lifecycle)
        self._dealer = Dealer(self._ledger, self._driver, self._lifecycle)
        self._contributions = Contributions(self._ledger, self._driver, self._lifecycle, self._dealer)

    def agree(self, optimizer: Mapping[str, object]) -> None:
        """The job's optimizer, where it was not known at the start. Before `opening`."""
        self.terms = self._ledger.terms = replace(self.terms, optimizer=optimizer)

    def planned(self, transfer: float) -> None:
        """The model is known: a payload may be under way for `transfer` seconds."""
        self.terms = self._ledger.terms = replace(self.terms, transfer=transfer)

    def opening(self) -> list[Output]:
        """The first log entry. Call once, before any other input."""
        terms, policy, ledger = self.terms, self.policy, self._ledger
        local = policy.local_rule
        ledger.record(
            entries.Job(
                terms.job,
                {"name": policy.name, **policy.knobs},
                terms.optimizer,
                terms.servers,
                terms.workers,
                terms.seed,
                tensors=policy.tensors.config or None,
                local=None if local.plain else {"name": local.name, **local.knobs},
                min_workers=None if terms.quorum == terms.workers else terms.quorum,
            ),
            ledger.began,
        )
        return ledger.emit()

    # State

    def state(self) -> CoordinatorState:
        """All that it and its policy know, between two inputs. Raises StateError for a policy that cannot be saved,
        and while it is `trying`."""
        if self.trying:
            raise StateError("the shards are asked about an update: expected state() after their answer")
        return save(self._ledger, self._driver)

    def restore(self, state: CoordinatorState, *, shift: float = 0.0) -> None:
        """Go on from that state: in place of `opening`, and before any input.

        `shift` is added to all times, for another process has another clock: `now` minus the time of the
        state in that clock. The same inputs lead to the same outputs then as they would have before.
        Members are as they were; for each whose connection does not stand any more, call `disconnect`.
        Raises StateError, with nothing changed, for a state that does not fit (see `psserver.coordinator.state`).
        """
        take_up(state, self._ledger, self._driver, shift)
        if self._ledger.initialised:
            # How large the numbers on the shards are is not part of the state: they are asked at the first update.
            self._assurance.installed(False)

    def resume(self, rolled_back: int, now: float, expected: Collection[str] = ()) -> list[Output]:
        """Go on in new processes, right after `restore` of a state that a checkpoint's entry ends.

        Open tickets are cancelled and members leave; what they committed stays. Grants begin again when as many
        workers are ready as at the start, or all that are `expected` back, where somebody knows them.
        `rolled_back`: how many entries the log has lost for it.
        """
        self._ledger.expected = frozenset(expected)
        self._membership.resume(rolled_back, now)
        return self._ledger.emit()

    def checkpoint(self, now: float) -> list[Output]:
        """Have everything saved now, unless the newest version is, or it is `trying`: before a signal ends the job."""
        ledger = self._ledger
        if (
            ledger.stopped is None
            and not self.trying
            and ledger.initialised
            and ledger.version > ledger.saved_version
        ):
            ledger.checkpoint(now)
        return ledger.emit()

    # Another policy

    def check_succession(self, policy: Policy) -> None:
        """Raises PolicyError when `policy` cannot take over from the present one while the job runs."""
        self._driver.check_succession(policy)

    def change_policy(self, policy: Policy, now: float) -> list[Output]:
        """Another policy decides from now on, from where the present one is; for simulations that ask "what if".

        The decision log does not say so: it cannot be replayed afterwards. Raises PolicyError, with nothing changed.
        """
        self._driver.succeed(policy, now)
        self.policy = policy
        return self._ledger.emit()

    # Work units

    def declare_work(self, terms: WorkTerms | None, now: float) -> list[Output]:
        """What the job's data is dealt as; None: it is not dealt. Before version 0; said again, it changes nothing.
        Raises WorkError for terms that make no sense, with nothing changed."""
        if terms is not None:
            terms.check()
        self._dealer.declare(terms, now)
        return self._ledger.emit()

    @property
    def work_terms(self) -> WorkTerms | None:
        """Those of `declare_work`."""
        return None if self._ledger.work is None else self._ledger.work.terms

    def _emit(self, now: float) -> list[Output]:
        """The end of an input that may have brought a work unit back."""
        if not self.trying:
            self._dealer.go_on(now)
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
    ) -> tuple[Member, list[Output]]:
        """Make a worker a member. Raises JoinRefused; nothing has changed then.

        An empty `worker` gets the name "w<rank>"; a rank of None the lowest
        free one. The same `session` again is the same member. A present worker
        of the same name but another session is superseded: a process that was
        restarted must not wait for its own former process. Not while `trying`: ask again after the answer.
        `remembers`: its codec makes payloads of earlier ones, too. `stays`: its process may take part in a further
        phase of the job: where all members are done, those are told so, and the job goes on when each of them has
        joined anew or left. It ends when nobody is left. `used`: of a session that joins again and does not go back,
        behind the last batch that it committed; what is not in the log of those is missing.
        """
        if self.trying:
            raise JoinDeferred("an update is being looked at; expected the Join again in a moment")
        member = self._membership.join(worker, session, rank, now, remembers, stays, used)
        return member, self._emit(now)

    def unknown_session(self, worker: str, incarnation: int, session: str) -> str | None:
        """Why the process with this `session` is not that member; None when it is."""
        member = self._ledger.member(worker, incarnation)
        if member is not None and member.session == session:
            return None
        return self._ledger.unknown(worker, incarnation)

    @_after_trial
    def connect(self, worker: str, incarnation: int, session: str, now: float) -> list[Output]:
        """The worker's session stream stands (again): repeat what it may have missed."""
        member = self._ledger.member(worker, incarnation)
        if member is None or member.session != session:
            return self._ledger.refuse_unknown_session(worker, incarnation)
        self._membership.connect(member, now)
        return self._emit(now)

    def dismiss_absent(self, reason: str, now: float) -> list[Output] | None:
        """Everybody who is a member departs, if nobody's session stream stands; else None, with nothing changed."""
        if self._membership.dismiss_absent(reason, now):
            return self._emit(now)
        return None

    @_after_trial
    def disconnect(self, worker: str, incarnation: int, now: float) -> list[Output]:
        """The stream broke. The worker may come back within the grace period (see `tick`)."""
        member = self._ledger.member(worker, incarnation)
        if member is not None:
            self._membership.disconnect(member, now)
        return self._emit(now)

    @_after_trial
    def give_up(self, worker: str, reason: str, now: float) -> list[Output]:
        """The member lives and does not do its part, as its server found out: it departs. It may join again."""
        member = self._ledger.roster.present.get(worker)
        if member is not None:
            self._membership.depart(member, reason, now)
            self._lifecycle.start_when_complete(now)
        return self._emit(now)

    # Work

    @_after_trial
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
        """Take a request of this incarnation of a worker. Sent twice, it is answered twice and counts once.

        `ordinary`, `norm`: of a commit, what receipts say of its payload: no number is beyond what `Assurance` takes
        for ordinary; the L2 norm of the gradient, NaN where nothing is computed.
        A ready asks for the next ticket: the worker is idle, or works on ticket `holding` and wants the one after it
        ahead; while it holds such a one, it is sent that one again. Where the policy grants nothing ahead, nothing
        follows from it. To abandon a settled ticket (a cancelled one, say) changes nothing. A done worker has no more
        data: barriers shrink, and the job ends when all are done, or at once where `ends` says why; a ticket that the
        worker still holds is abandoned, for a ready that it repeated may have brought one that it never wanted. A
        report changes nothing here.
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

    @_after_trial
    def note(self, text: str, now: float) -> list[Output]:
        """Record an operator's remark; nothing else follows from it. Not once the job has stopped."""
        if self.stopped is None:
            self._ledger.record(entries.Note(text), now)
        return self._emit(now)

    def tick(self, now: float) -> list[Output]:
        """Let time pass: give up on the absent, notice the end. Call at least once a second."""
        if self.trying:
            return []
        self._membership.expire(now)
        self._lifecycle.start_when_complete(now)
        self._lifecycle.finish_when_done(now)
        idle, empty_since = self.terms.idle_timeout, self._ledger.roster.empty_since
        if empty_since is not None and idle > 0 and now - empty_since >= idle:
            self._ledger.stop(f"no worker for {idle:g} s", now, success=False, cause="abandoned")
        return self._emit(now)

    def stop(self, reason: str, now: float, *, success: bool, cause: str) -> list[Output]:
        """End the job from outside (a signal, a lost server)."""
        self._driver.drop_trial()
        self._ledger.stop(reason, now, success=success, cause=cause)
        return [*self._emit(now), *self._take_kept(now)]

    # Updates that may not be finite

    def tried(self, trial: int, finite: bool, largest: float, now: float) -> list[Output]:
        """The answer to a `Trial`: whether the update is finite on every shard. Another trial's is ignored.

        `largest`: no shard would have a number beyond it afterwards, in what it publishes or remembers.
        """
        pending = self._driver.trial
        if pending is None or pending.number != trial:
            return []
        self._driver.settle_trial(finite, largest, now)
        if not self.trying:
            self._lifecycle.finish_when_done(now)
            self._driver.watch(now)
        return [*self._emit(now), *self._take_kept(now)]

    def _take_kept(self, now: float) -> list[Output]:
        """Inputs that were kept, as if they came now, until the shards are asked again."""
        outputs: list[Output] = []
        while self._kept and not self.trying:
            outputs += self._kept.popleft()(now)
        return outputs
