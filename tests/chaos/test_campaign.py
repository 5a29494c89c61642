"""When a run is disturbed, and when it has recovered: without processes or clocks."""

from itertools import islice

import pytest

from tests.chaos.campaign import Campaign, Disturbance, Kind, Progress, Role, disturbances


def seen(version: int, job: str = "j", phase: str = "training") -> Progress:
    return Progress(job, version, phase)


def test_the_plan_is_the_seeds_and_comes_to_all_roles() -> None:
    plan = list(islice(disturbances(7, 3, 4), 600))
    assert plan == list(islice(disturbances(7, 3, 4), 600))
    assert plan != list(islice(disturbances(8, 3, 4), 600))
    roles = [each.role for each in plan]
    assert all(150 < roles.count(role) < 250 for role in ("worker", "shard", "coordinator"))
    assert {each.name for each in plan if each.role == "shard"} == {"server-1", "server-2"}
    assert 6 < sum(each.gap for each in plan) / 600 < 10
    assert 50 < sum(each.at_once for each in plan) < 130


def strike(kind: Kind, name: str, *, at_once: bool = False) -> Disturbance:
    roles: dict[str, Role] = {"server-0": "coordinator", "server-1": "shard"}
    return Disturbance(kind, roles.get(name, "worker"), name, 3, at_once)


def test_it_waits_for_versions_and_for_the_recovery() -> None:
    first, second = strike("kill", "worker-0"), strike("kill", "worker-1")
    campaign = Campaign([first, second])
    assert campaign.see(0, seen(0, phase="waiting for workers")) is None
    assert [campaign.see(1, seen(version)) for version in (5, 6, 7)] == [None] * 3
    assert campaign.see(2, None) is None
    assert campaign.see(3, seen(8)) == first
    campaign.done(3, first)
    assert campaign.see(4, seen(8)) is None
    assert campaign.see(5.5, seen(9)) is None
    assert campaign.see(6, seen(12)) == second
    (outcome,) = campaign.outcomes
    assert (outcome.version, outcome.rolled_back, outcome.seconds) == (8, None, 2.5)


def test_a_lost_server_is_back_when_another_life_of_the_job_makes_a_version() -> None:
    """What the coordinator decides before it knows of the loss is no recovery."""
    struck = strike("kill", "server-1")
    campaign = Campaign([struck, strike("cut", "server-0")])
    campaign.see(0, seen(0))
    assert campaign.see(1, seen(20)) == struck
    campaign.done(1, struck)
    for version in (21, 25):
        campaign.see(2, seen(version))
    campaign.see(3, None)
    (outcome,) = campaign.outcomes
    assert outcome.seconds is None
    campaign.see(4, seen(15, "j.1", "waiting for workers"))
    assert (outcome.rolled_back, outcome.seconds) == (5, None)
    campaign.see(6, seen(16, "j.1"))
    assert outcome.seconds == 5


def test_some_strike_during_the_recovery_from_another() -> None:
    first, second = strike("kill", "server-0"), strike("kill", "server-1", at_once=True)
    campaign = Campaign([first, second, strike("kill", "worker-0", at_once=True)])
    campaign.see(0, seen(0))
    assert campaign.see(1, seen(9)) == first
    campaign.done(1, first)
    # The process may not be there yet: it is asked for again.
    assert campaign.see(2, None) == second and campaign.see(3, None) == second
    campaign.done(3, second)
    assert campaign.see(4, None) is None
    campaign.see(5, seen(4, "j.1"))
    campaign.see(6, seen(5, "j.1"))
    assert [outcome.seconds for outcome in campaign.outcomes] == [5, 3]


def test_it_is_over_when_the_last_one_has_a_next_version() -> None:
    struck = strike("kill", "worker-0")
    campaign = Campaign([struck])
    campaign.see(0, seen(0))
    assert campaign.see(1, seen(9)) == struck and not campaign.over
    campaign.done(1, struck)
    assert campaign.see(2, seen(9)) is None and not campaign.over
    assert campaign.see(3, seen(10)) is None and campaign.over


def test_a_version_that_was_made_before_the_disturbance_is_no_recovery() -> None:
    """The answer before it may be old: what the first one behind it says was there already."""
    struck = strike("kill", "worker-0")
    campaign = Campaign([struck])
    campaign.see(0, seen(0))
    assert campaign.see(1, seen(9)) == struck
    campaign.done(1, struck)
    campaign.see(2, seen(11))
    assert campaign.outcomes[0].seconds is None
    campaign.see(4, seen(12))
    assert campaign.outcomes[0].seconds == 3


@pytest.mark.parametrize("kind", ["stop", "cut"])
def test_a_server_that_is_only_stopped_or_cut_off_may_not_be_given_up(kind: Kind) -> None:
    campaign = Campaign([strike(kind, "server-1")])
    campaign.see(0, seen(0))
    due = campaign.see(1, seen(9))
    assert due is not None
    campaign.done(1, due)
    campaign.see(1.5, seen(9))
    campaign.see(2, seen(10))
    assert campaign.outcomes[0].seconds == 1 and campaign.outcomes[0].rolled_back is None
