"""Sync: a contribution of a worker that has left never takes the place of one that is still at work."""

from psserver.policies import Apply, Commit, Decision, Grant, Join, Leave, Policy, Ready, build


def play(policy: Policy, worker: str, rank: int, ticket: int) -> None:
    policy.step(Join(worker, rank))
    assert [type(d) for d in policy.step(Ready(worker, ticket))] == [Grant]


def commit(policy: Policy, worker: str, ticket: int) -> list[Decision]:
    return policy.step(Commit(worker, ticket, 32, 0.5, 1.0))


def test_a_late_comer_is_waited_for_although_a_dead_worker_has_contributed() -> None:
    """As many have contributed as the job has workers; but one of them is dead, and w1 works on version 0."""
    policy = build("sync", {}, workers=3)
    for ticket, (worker, rank) in enumerate([("w0", 0), ("w2", 2), ("w3", 3)], start=1):
        play(policy, worker, rank, ticket)
    commit(policy, "w0", 1)
    commit(policy, "w2", 2)
    policy.step(Leave("w2", "lost"))
    play(policy, "w1", 1, 4)
    assert not any(isinstance(d, Apply) for d in commit(policy, "w3", 3))
    (update,) = [d for d in commit(policy, "w1", 4) if isinstance(d, Apply)]
    assert sorted(part.ticket for part in update.parts) == [1, 2, 3, 4]


def test_a_lost_worker_uses_up_a_backup() -> None:
    """Three of four are enough; when one is lost, the three that are left are."""
    policy = build("sync", {"backup": 1}, workers=4)
    for rank in range(4):
        play(policy, f"w{rank}", rank, rank + 1)
    policy.step(Leave("w3", "lost"))
    commit(policy, "w0", 1)
    assert not any(isinstance(d, Apply) for d in commit(policy, "w1", 2))
    assert any(isinstance(d, Apply) for d in commit(policy, "w2", 3))
