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


FAULTS: dict[str, tuple[str, int, int]] = {
    # The fault's sentence, workers, acts: one worker joins, installs the values, and does what shows it.
    "AppliesTwice": ("apply of ticket 2, which is settled or unknown", 1, 5),
    "GrantsTwice": ("grant of ticket 2, for which w0 does not wait", 1, 4),
    "RaisesOnDone": ("failed on Done(worker='w0'): KeyError: 'w0'", 1, 4),
    "Exits": ("SystemExit: 0", 1, 4),
    "Endless": ("drop of ticket 0, which is settled or unknown", 1, 4),
    "TakesBack": ("granted tickets that are cancelled at once", 1, 6),
    "Loops": ("policy tests.verify.faulty_policies:Loops: its step does not end", 1, 4),
    "LoopsInExplain": ("explain('w0') does not end", 2, 7),
    "ExitsInExplain": ("failed with SystemExit: 0", 2, 6),
    "RaisesOnLeave": ("failed on Leave(worker='w0'", 1, 4),
    "DeadlocksOnLeave": ("deadlocked: w0 wait and no ticket is open", 2, 8),
    "FoldsInAnotherOrder": ("expected first what was folded, as it was", 2, 7),
    "HoldsTurns": ("the shards have no room for the payloads of tickets", 2, 7),
    "Unexplained": ("is None, while w", 2, 6),
    "Forgets": ("neither applied nor dropped 1 tickets", 2, 16),
    # Norms of all sizes and other servers are drawn.
    "RaisesOnNorm": ("OverflowError: the norm is too large", 1, 5),
    "RaisesWithoutNorm": ("cannot convert float NaN to integer", 1, 4),
    "CountsOnSamples": ("ZeroDivisionError", 1, 5),
    "LosesItsState": ("KeyError: 'w0'", 2, 8),
    "RefusesItsState": ("cannot take up its state: StateError: expected something", 1, 5),
}


@pytest.mark.parametrize("policy", FAULTS)
def test_a_fault_is_found_and_cut_down(policy: str) -> None:
    sentence, workers, acts = FAULTS[policy]
    finding = found(policy)
    assert sentence in finding.fault
    assert (finding.case.workers, len(finding.acts)) == (workers, acts), finding.acts
    assert finding.found > acts


@pytest.mark.parametrize("policy", usually(["GrantsTwice", "HoldsTurns", "Unexplained"], soak=list(FAULTS)))
def test_nothing_can_be_left_out(policy: str) -> None:
    """The shortest schedule shows the fault, and without any one of its acts it does not."""
    finding = found(policy, seed=500)
    assert play(finding.case, finding.acts).fault == finding.fault
    for at in range(len(finding.acts)):
        rest = [*finding.acts[:at], *finding.acts[at + 1 :]]
        assert signature(play(finding.case, rest).fault) != signature(finding.fault), rest


def test_chance_is_no_policy() -> None:
    random.seed(7)
    finding = found("Throws")
    assert finding.fault == OTHERWISE
    assert finding.acts == ("w0 joins A", "w0 ready", "w0 commits", "w0 commits")


def test_the_same_seed_finds_the_same() -> None:
    assert found("DeadlocksOnLeave", seed=3) == found("DeadlocksOnLeave", seed=3)
    assert found("DeadlocksOnLeave", seed=3).seed != found("DeadlocksOnLeave", seed=300).seed


@pytest.mark.parametrize("policy", names())
def test_built_in_policies_keep_the_contract(policy: str) -> None:
    schedules = repetitions(10, soak=1000, fast=4)
    report = verify(Case(policy, workers=4), schedules=schedules)
    assert report.finding is None, report.finding
    assert report.acts > 4 * schedules


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
