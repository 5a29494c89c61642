"""When a server of a job with replicas is struck, and when the job is over it: without processes or clocks."""

from itertools import islice

import pytest

from tests.chaos.campaign import Disturbance, Kind, Progress, Role
from tests.chaos.copies import UNSEEN, CopiesCampaign, disturbances, whole

WHOLE = ("leads", "in sync", "votes")


def seen(version: int, *servers: str, phase: str = "training") -> Progress:
    return Progress("j", version, phase, servers or WHOLE)


def strike(kind: Kind, role: Role, *, gap: int = 3, at_once: bool = False) -> Disturbance:
    return Disturbance(kind, role, "worker-0" if role == "worker" else "", gap, at_once, 1.0)


def struck(*plan: Disturbance) -> CopiesCampaign:
    """A campaign whose first strike was carried out at version 9, at second 1."""
    campaign = CopiesCampaign(plan, stop=2.0)
    campaign.see(0, seen(0))
    due = campaign.see(1, seen(9))
    assert due is not None
    campaign.done(1, due)
    return campaign


def test_the_plan_is_the_seeds_and_comes_to_all_roles() -> None:
    plan = list(islice(disturbances(7, 2), 800))
    assert plan == list(islice(disturbances(7, 2), 800))
    roles = [each.role for each in plan]
    assert all(150 < roles.count(role) < 250 for role in ("worker", "leader", "follower", "voter"))
    assert {each.name for each in plan if each.role == "worker"} == {"worker-0", "worker-1"}
    assert {each.kind for each in plan} == {"kill", "stop"}
    assert {each.role for each in islice(disturbances(7, 2, roles=("voter",)), 50)} == {"voter"}


@pytest.mark.parametrize(
    ("states", "good"),
    [
        (WHOLE, True),
        (("votes", "in sync", "leads"), True),
        (("lost", "leads", "votes"), False),
        (("learns", "leads", "votes"), False),
        (("leads", "in sync", "lost"), False),
        ((), False),
    ],
)
def test_one_more_loss_costs_nothing_while_all_are_there(states: tuple[str, ...], good: bool) -> None:
    assert whole(Progress("j", 0, "training", states)) is good


@pytest.mark.parametrize(
    ("role", "name"), [("leader", "server-1"), ("follower", "server-0"), ("voter", "server-2")]
)
def test_it_strikes_the_server_that_has_the_role_now(role: Role, name: str) -> None:
    campaign = CopiesCampaign([strike("kill", role)], stop=2.0)
    states = "in sync", "leads", "votes"
    assert campaign.see(0, seen(0, *states)) is None
    due = campaign.see(1, seen(3, *states))
    assert due is not None and (due.name, due.role) == (name, role)


def test_nobody_is_struck_before_all_are_there() -> None:
    campaign = CopiesCampaign([strike("kill", "voter")], stop=2.0)
    for version in (0, 5, 10):
        assert campaign.see(0, seen(version, "leads", "learns", "votes")) is None
    assert campaign.see(0, seen(11, phase="stopping")) is None
    assert campaign.see(1, seen(11)) is None
    assert campaign.see(2, seen(14, "leads", "lost", "votes")) is None
    assert campaign.see(3, seen(15)) is not None


def test_the_next_one_waits_until_the_lost_server_is_back() -> None:
    campaign = struck(strike("kill", "leader"), strike("kill", "voter", gap=1))
    lost = "lost", "leads", "votes"
    assert campaign.see(1.2, None) is None
    # The answer before the loss was noticed: all seem to be there, and the job goes on.
    campaign.see(1.3, seen(9))
    campaign.see(1.4, seen(10))
    assert campaign.see(1.5, seen(12)) is None
    campaign.see(2, seen(12, *lost))
    for version in (13, 20):
        assert campaign.see(3, seen(version, *lost)) is None
    assert campaign.see(4, seen(21)) is None
    due = campaign.see(5, seen(22))
    assert due is not None and due.name == "server-2"
    (outcome,) = campaign.outcomes
    assert outcome.seconds == pytest.approx(0.4) and outcome.rolled_back is None


def test_a_kill_that_no_status_has_shown_is_over_after_a_while() -> None:
    campaign = struck(strike("kill", "voter"), strike("kill", "voter", gap=1))
    campaign.see(2, seen(10))
    assert campaign.see(3, seen(20)) is None
    assert campaign.see(1 + UNSEEN, seen(30)) is None
    assert campaign.see(2 + UNSEEN, seen(30)) is None
    assert campaign.see(3 + UNSEEN, seen(31)) is not None


def test_a_server_that_stands_still_is_lost_until_it_goes_on() -> None:
    """Of one that votes no status says that it is silent."""
    campaign = struck(strike("stop", "voter"), strike("kill", "leader", gap=1))
    campaign.see(1.1, seen(9))
    for now, version in ((1.2, 10), (2.9, 90)):
        assert campaign.see(now, seen(version)) is None
    assert campaign.see(3.1, seen(100)) is None
    assert campaign.see(3.2, seen(101)) is not None


@pytest.mark.parametrize(
    ("first", "second", "early"),
    [
        ("leader", "worker", True),
        ("worker", "follower", True),
        ("leader", "follower", False),
        ("worker", "worker", True),
    ],
)
def test_only_a_worker_is_struck_beside_a_server(first: Role, second: Role, early: bool) -> None:
    campaign = struck(strike("kill", first), strike("kill", second, at_once=True))
    assert (campaign.see(1.5, seen(9)) is not None) is early


def test_a_server_is_not_struck_beside_a_worker_while_another_server_is_lost() -> None:
    campaign = struck(strike("kill", "worker"), strike("kill", "follower", at_once=True))
    assert campaign.see(1.5, seen(9, "leads", "lost", "votes")) is None
    assert campaign.see(1.6, seen(9)) is not None
