"""A policy's promise holds after a worker's restart, a server's loss, a takeover and a change; `ps-lab check` sees
where it does not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from psserver.policies import ComposedPolicy, Count, KeepAll
from psserver.policies.parts.dssp import DynamicSlack
from psserver.policies.parts.gates import Slack
from tests.policies.events import EVENTS, KINDS, PROMISES, Job, Promise, Recount, play, recount
from tests.promises import promise as promised


def broken(promise: Promise, found: Recount) -> list[str]:
    """Return the kinds of promises that the recount finds broken."""
    wrong = []
    for kind in KINDS:
        limit, value = getattr(promise, kind), getattr(found, kind)
        if limit is not None and (value < limit if kind == "workers" else value > limit):
            wrong.append(f"{kind}: {value}, promised {limit}")
    return wrong


@promised("What a policy promises holds after restarts, losses of servers, takeovers and changes of policy.")
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_every_promise_holds_after_every_event(promise: Promise) -> None:
    for name, event in EVENTS.items():
        job = play(promise, event)
        assert job.coordinator.state.stopped is None and job.version > 5, f"{name}: {job.stopped}"
        assert not broken(promise, recount(job)), name
        assert job.verdict().ok, f"{name}: {job.verdict().violations[:2]}"


# Faults


def loosened(promise: Promise) -> Callable[[Job], None]:
    """Return a fault: from now on the policy does not do what it promises."""

    def fault(job: Job) -> None:
        policy = job.coordinator.policy
        assert isinstance(policy, ComposedPolicy)
        rules = policy._rules
        if promise.gap is not None:
            wide = DynamicSlack(99, 99) if promise.policy == "dssp" else Slack(99)
            rules = replace(rules, gate=wide)
        elif promise.misses is not None:
            assert rules.deadline is not None
            policy._deadline = replace(rules.deadline, patience=0)
        elif promise.workers is not None:
            rules, policy._fewest = replace(rules, trigger=Count(1)), 1
        else:
            rules = replace(rules, staleness=KeepAll(), cancel=None)
        policy._rules = rules

    return fault


def forgetful(job: Job) -> None:
    """A fault: what the policy remembers of its workers is lost."""
    policy = job.coordinator.policy
    assert isinstance(policy, ComposedPolicy)
    policy._view.restart_clocks()
    policy._view.missed.clear()


def named(job: Job) -> list[int | None]:
    """Return the entries of which `ps-lab check` says that they break the policy's promise."""
    return [each.index for each in job.verdict().violations if each.check == "policy guarantee"]


# The facts of a policy do not say how often in a row, and how many, workers may be left out.
NAMED = [each for each in PROMISES if not each.misses and "backup" not in each.knobs]


@promised("`ps-lab check` names the entry at which a policy breaks its promise, after any event.")
@pytest.mark.parametrize("promise", NAMED, ids=lambda promise: promise.name)
def test_a_promise_that_is_broken_after_an_event_is_named(promise: Promise) -> None:
    for event in EVENTS:
        job = play(promise, EVENTS[event], loosened(promise), times=2)
        if promise.policy in ("median", "trimmed-mean", "krum"):
            # The coordinator itself refuses such an update.
            assert job.stopped.startswith("policy: "), event
            continue
        found = named(job)
        assert found and (found[0] or 0) >= job.events[0], event


@pytest.mark.parametrize(
    "promise", [each for each in PROMISES if each.gap or each.misses], ids=lambda promise: promise.name
)
def test_a_policy_that_forgets_its_workers_at_an_event_is_named(promise: Promise) -> None:
    for event in EVENTS:
        job = play(promise, EVENTS[event], forgetful, slow=12 if promise.misses else 5, times=3)
        assert broken(promise, recount(job)), event
        assert named(job) or promise.misses, event
