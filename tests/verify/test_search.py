"""Planted faults are found within the default number of schedules and cut down to what shows them."""

import random

import pytest

from pslab.verify.guarded import Case, play
from pslab.verify.search import OTHERWISE, Finding, signature, verify
from psserver.policies import PolicyError, names
from tests.repetitions import repetitions, usually

SCHEDULES = 1000  # the default of ps-lab verify-policy


def found(policy: str, workers: int = 3, seed: int = 0) -> Finding:
    report = verify(
        Case(f"tests.verify.faulty_policies:{policy}", workers=workers), schedules=SCHEDULES, seed=seed
    )
    assert report.finding is not None
    return report.finding


BEGINS = ("w0 joins", "w0 ready", "w0 commits")

FAULTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "AppliesTwice": ("apply of ticket 2, which is settled or unknown", (*BEGINS, "w0 commits", "w0 done")),
    "Forgets": ("neither applied nor dropped 1 tickets", (*BEGINS, "w0 commits loss=nan", "w0 done")),
    "GrantsTwice": ("grant of ticket 2, for which w0 does not wait", (*BEGINS, "w0 done")),
    "RaisesOnDone": ("failed on Done(worker='w0'): KeyError: 'w0'", (*BEGINS, "w0 done")),
    "Exits": ("step wants to exit: 0", (*BEGINS, "w0 leaves")),
    "Endless": ("more than 10000 decisions in one step", (*BEGINS, "w0 leaves")),
    "TakesBack": ("granted tickets that are cancelled at once", (*BEGINS, "w0 ready", "w0 ready")),
}


@pytest.mark.parametrize("policy", FAULTS)
def test_one_worker_is_enough_to_show_it(policy: str) -> None:
    sentence, acts = FAULTS[policy]
    finding = found(policy)
    assert sentence in finding.fault
    assert (finding.case.workers, finding.acts) == (1, acts)
    assert finding.found > len(acts)


TWO: dict[str, tuple[str, int]] = {
    # Both join, one brings the values and is lost; the other commits and waits until it is given up.
    "DeadlocksOnLeave": ("deadlocked: w0 wait and no ticket is open", 10),
    "FoldsInAnotherOrder": ("expected first what was folded, as it was", 7),
    "HoldsTurns": ("the shards have no room for the payloads of tickets", 6),
    "Unexplained": ("is None, while w", 6),
}


@pytest.mark.parametrize("policy", TWO)
def test_two_workers_are_enough_to_show_it(policy: str) -> None:
    sentence, length = TWO[policy]
    # From seed 0 on its other faults come first.
    finding = found(policy, seed=60 if policy == "DeadlocksOnLeave" else 0)
    assert sentence in finding.fault
    assert (finding.case.workers, len(finding.acts)) == (2, length), finding.acts


@pytest.mark.parametrize("policy", usually(["GrantsTwice", *TWO], soak=list(FAULTS)))
def test_nothing_can_be_left_out(policy: str) -> None:
    """The shortest schedule shows the fault, and without any one of its acts it does not."""
    finding = found(policy, seed=500)
    assert play(finding.case, finding.acts).fault == finding.fault
    for at in range(len(finding.acts)):
        rest = [*finding.acts[:at], *finding.acts[at + 1 :]]
        assert signature(play(finding.case, rest).fault) != signature(finding.fault), rest


@pytest.mark.parametrize(
    ("policy", "sentence", "act"),
    [
        ("RaisesOnNorm", "OverflowError: the norm is too large", "norm="),
        ("RaisesWithoutNorm", "cannot convert float NaN to integer", "norm=nan"),
        ("LosesItsState", "which async did not grant", "copy takes over"),
    ],
)
def test_norms_of_all_sizes_and_other_servers_are_drawn(policy: str, sentence: str, act: str) -> None:
    finding = found(policy)
    assert sentence in finding.fault
    assert any(act in line for line in finding.acts), finding.acts


def test_a_step_that_never_ends_is_given_up() -> None:
    finding = found("Loops")
    assert "step does not end" in finding.fault
    assert finding.acts == (*BEGINS, "w0 leaves")


def test_chance_is_no_policy() -> None:
    random.seed(7)
    finding = found("Throws")
    assert finding.fault == OTHERWISE
    assert finding.acts == (*BEGINS, "w0 commits")


def test_the_same_seed_finds_the_same() -> None:
    assert found("DeadlocksOnLeave", seed=3) == found("DeadlocksOnLeave", seed=3)
    assert found("DeadlocksOnLeave", seed=3).seed != found("DeadlocksOnLeave", seed=300).seed


@pytest.mark.parametrize("policy", names())
def test_built_in_policies_keep_the_contract(policy: str) -> None:
    schedules = repetitions(10, soak=1000, fast=4)
    report = verify(Case(policy, workers=4), schedules=schedules)
    assert report.finding is None, report.finding
    assert report.events > 4 * schedules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.verify.faulty_policies:NoKnobs", "are not JSON, as the decision log needs"),
        ("tests.verify.faulty_policies:Nowhere", "has no 'Nowhere'"),
        ("tests.verify.nothing:X", "cannot import 'tests.verify.nothing'"),
        ("assync", 'did you mean "async"'),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        verify(Case(name), schedules=1)
