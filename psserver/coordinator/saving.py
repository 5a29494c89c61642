"""A saved state and the policies in it: whether they fit a job, and how a job that had stopped goes on."""

from collections.abc import Mapping

from psserver.coordinator.state import JobState
from psserver.coordinator.terms import JobTerms
from psserver.coordinator.timers import Timers
from psserver.policies import Policy, PolicyError
from psserver.policies.loading import build, spec_of
from psserver.policies.policy import config_of
from psserver.records import StateError, to_plain


def resumed(state: JobState, terms: JobTerms, policy: Policy) -> Policy:
    """Return the policy that decides in `state`, with its memory: `policy`, with which the job began, or the one that
    took over. Raises StateError for the state of another job."""
    for name, expected in (("workers", terms.workers), ("servers", terms.servers), ("seed", terms.seed)):
        got = getattr(state, name)
        if got != expected:
            raise StateError(
                f"expected the state of a job with {name} = {expected}, got one with {name} = {got}"
            )
    if state.changes.waiting is not None:
        _built(state, state.changes.waiting.name, state.changes.waiting.knobs)
    present = _present(state, policy)
    try:
        present.restore(state.policy.remembers)
    except (Exception, SystemExit) as error:
        raise StateError(
            f"policy {present.name} cannot take up its state: {type(error).__name__}: {error}"
        ) from error
    state.tickets.next_number = max(state.tickets.next_number, terms.first_ticket)
    return present


def _present(state: JobState, policy: Policy) -> Policy:
    """Return the policy that decides in `state`, new. Raises StateError unless the job began with `policy`, and for a
    policy that cannot have taken over."""
    configured = to_plain(config_of(policy))
    began = state.changes.began_with or {"name": state.policy.name, **state.policy.knobs}
    if began != configured:
        raise StateError(f"expected the state of a job that began with policy {configured}, got {began}")
    if not state.changes.began_with:
        return policy
    present = _built(state, state.policy.name, state.policy.knobs)
    try:
        present.check_succession(policy)
    except PolicyError as error:
        raise StateError(str(error)) from error
    return present


def _built(state: JobState, name: str, knobs: Mapping[str, object]) -> Policy:
    """Build a policy that a change has named. Raises StateError; a state names no code of its own."""
    try:
        spec_of(name)
        return build(name, knobs, state.workers, state.servers)
    except PolicyError as error:
        raise StateError(f"coordinator state: {error}") from error


def reopen(state: JobState, policy: Policy) -> None:
    """Make a stopped job's state one that can continue; do nothing for any other.

    `policy`: a new one of the kind with which the job began. The one that decides never learned the fate of its last
    tickets, and goes on without them. Raises StateError.
    """
    if state.stopped is None:
        return
    present = _present(state, policy)
    try:
        present.go_on(state.policy.remembers, state.version)
    except (Exception, SystemExit) as error:
        raise StateError(
            f"policy {present.name} cannot go on from its state: {type(error).__name__}: {error}"
        ) from error
    state.stopped = state.evaluator = None
    state.timers = Timers()
    state.folded.clear()
    state.policy.remembers = policy_state(present)
    for member in state.roster.present.values():
        member.known_to_policy = False


def policy_state(policy: Policy) -> dict[str, object]:
    """Return the policy's state. Raises StateError for whatever a user's code raises or returns instead."""
    try:
        asked = policy.state()
    except StateError:
        raise
    except (Exception, SystemExit) as error:
        raise StateError(f"policy {policy.name} cannot be saved: {type(error).__name__}: {error}") from error
    try:
        found = to_plain(asked)
    except StateError as error:
        raise StateError(f"policy {policy.name} cannot be saved: state(): {error}") from error
    if not isinstance(found, dict):
        raise StateError(f"policy {policy.name}: state() returned {found!r}; expected a dict")
    return found
