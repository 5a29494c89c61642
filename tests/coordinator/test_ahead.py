"""A second ticket, asked for while the first is worked on: where the policy permits it, and nowhere else."""

from collections.abc import Mapping

import pytest

from pslab.verify.harness import CoordinatorHarness, granted
from psserver.coordinator import inputs
from psserver.decisions import entries
from psserver.policies import build
from pswire import protocol
from tests.coordinator import faulty_policies
from tests.lab.logs import FakeLog, verify
from tests.promises import promise

PERMITTING: list[tuple[str, Mapping[str, object]]] = [
    ("async", {}),
    ("bounded", {"max_staleness": 1}),
    ("bounded", {"max_staleness": 1, "on_stale": "block"}),
    ("bounded", {"max_staleness": 0, "on_stale": "downweight"}),
    ("k-batch-async", {"aggregate": 2}),
    ("dc-asgd", {}),
    ("fedbuff", {}),
    ("ringmaster", {"threshold": 2}),
]
FORBIDDING: list[tuple[str, Mapping[str, object]]] = [
    ("sync", {}),
    ("sync", {"backup": 1}),
    ("k-sync", {}),
    ("k-async", {"aggregate": 2}),
    ("rennala", {}),
    ("ssp", {"slack": 5}),
    ("dssp", {}),
    ("bounded", {"max_staleness": 0}),
    ("bounded", {"max_staleness": 0, "on_stale": "block"}),
]


def ahead(harness: CoordinatorHarness, worker: str) -> list[int]:
    """It asks for the ticket after the newest that it holds; what it is granted."""
    holding = harness.coordinator.state.tickets.open_of(worker)[-1].number
    outputs = harness.coordinator.take(
        inputs.Requested(worker, harness.incarnation(worker), protocol.Ready(holding)), harness.now
    )
    return granted(harness.take(outputs))


def kept(harness: CoordinatorHarness) -> None:
    verdict = harness.verdict()
    assert verdict.violations == (), [str(violation) for violation in verdict.violations]


@pytest.mark.parametrize(("policy", "knobs"), PERMITTING)
def test_where_the_policy_permits_it_comes_at_once(policy: str, knobs: Mapping[str, object]) -> None:
    harness = CoordinatorHarness(policy, knobs).starts()
    first = harness.holds("w0")
    assert first is not None
    (second,) = ahead(harness, "w0")
    assert second > first
    assert harness.entries(entries.Grant)[-1].ahead is True
    assert harness.member("w0").state == "computing"
    # Said again it is the same one; a third there is not.
    outputs = harness.coordinator.take(inputs.Requested("w0", 0, protocol.Ready(first)), harness.now)
    assert granted(harness.take(outputs)) == [second]
    assert ahead(harness, "w0") == []
    kept(harness)


@pytest.mark.parametrize(("policy", "knobs"), FORBIDDING)
def test_where_it_does_not_it_comes_with_the_commit(policy: str, knobs: Mapping[str, object]) -> None:
    harness = CoordinatorHarness(policy, knobs).starts()
    before = harness.state()
    assert ahead(harness, "w0") == []
    assert harness.state() == before, "nothing follows from it"
    for _ in range(3):
        for worker in ("w0", "w1"):
            if harness.holds(worker) is not None:
                harness.commits(worker)
    assert harness.version >= 2
    assert not any(grant.ahead for grant in harness.entries(entries.Grant))
    kept(harness)


@promise("A version that is fetched ahead counts with its true staleness.")
def test_staleness_is_one_more_and_honest() -> None:
    """One worker, which would be always fresh."""
    harness = CoordinatorHarness("async", workers=1).starts()
    for _ in range(6):
        ahead(harness, "w0")
        harness.commits("w0", ready=False)
    parts = [part for apply in harness.entries(entries.Apply) for part in apply.parts]
    assert [part.staleness for part in parts] == [0, 1, 1, 1, 1, 1]
    harness.done("w0")
    kept(harness)


def test_the_bound_holds() -> None:
    """Two workers ahead, at most one version old: what would be older is dropped, and told."""
    harness = CoordinatorHarness("bounded", {"max_staleness": 1}).starts()
    for _ in range(8):
        for worker in ("w0", "w1"):
            ahead(harness, worker)
            harness.commits(worker, ready=False)
    assert max(part.staleness for apply in harness.entries(entries.Apply) for part in apply.parts) == 1
    assert harness.entries(entries.Drop)
    kept(harness)


def test_a_policy_that_never_heard_of_it_is_not_asked() -> None:
    harness = CoordinatorHarness(faulty_policies.Honest(workers=2), workers=2).starts()
    assert ahead(harness, "w0") == []
    harness.commits("w0")
    assert harness.holds("w0") is not None and not harness.stopped


@pytest.mark.parametrize(
    ("policy", "held", "sentence"),
    [
        ("ssp", 1, "w0 is granted ticket 3 ahead, which ssp does not permit"),
        ("async", 0, "w0 is granted ticket 2 ahead, but it holds none"),
        ("async", 2, "w0 is granted ticket 4 ahead while it holds tickets 2 and 3"),
    ],
)
def test_the_checker_finds_what_is_not_permitted(policy: str, held: int, sentence: str) -> None:
    log = FakeLog(policy, workers=1)
    for number in range(held + 1):
        log.grant("w0")
        if number == held or number:
            log.records[-1]["ahead"] = True
    found = [str(violation) for violation in verify(log.records).violations]
    assert any(sentence in violation for violation in found), found


def test_which_built_in_policies_permit() -> None:
    for policy, knobs in PERMITTING:
        assert build(policy, knobs, 2).ahead
    for policy, knobs in FORBIDDING:
        assert not build(policy, knobs, 2).ahead
