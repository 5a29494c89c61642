"""Whatever dies, is cut off or breaks, at whatever step: the job goes on, and every batch of every worker counts once.

Every built-in policy in turn; a quarter of the jobs has a disk that fails. Few here; `scripts/soak crashes` takes many,
in several processes, and shows the shortest story of one that fails.
"""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psserver.checkpoint import Store, fence
from psserver.coordinator import JobTerms
from psworker.engine import ClientEngine
from tests.promises import promise
from tests.recovery.campaign import fault_of, play_all, shortest
from tests.recovery.settings import POLICIES, job_of
from tests.recovery.shard import Shard
from tests.repetitions import FIRST_SEED, repetitions, seeds

SCHEDULES = repetitions(800, soak=50_000)


@promise("Random crashes, at every point of recovery and of real processes, lose no row.")
@pytest.mark.timeout(3600)
def test_many_schedules() -> None:
    tally = play_all(seeds(800, soak=50_000))
    assert tally.failed is None, tally.failed
    if SCHEDULES >= 800:
        # The schedules are not idle: everything that can happen does, under every policy.
        assert set(tally.policies) == set(POLICIES)
        assert tally.on_disk and tally.rolled_back
        assert tally.happened.keys() >= {
            "kill server 0",
            "kill shard",
            "kill worker",
            "kill all servers",
            "power loss",
            "partition worker",
            "partition shard",
            "connection cut",
            "exchange cut",
            "message late",
            "message twice",
            "a worker's timeout passes",
            "SIGTERM",
            "disk crash",
            "disk full",
            "disk short",
            "disk broken",
            "disk lost sync",
            "disk flip",
        }


@settings(
    max_examples=repetitions(40, soak=5000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(seed=st.integers(0, 5000), choices=st.lists(st.integers(0, 2**16), max_size=900))
def test_any_schedule(seed: int, choices: list[int]) -> None:
    """The same, with a search for the smallest that fails."""
    fault, story = fault_of(job_of(seed), choices, seed)
    assert not fault, (fault, story)


# The schedules must see what is wrong: faults planted one at a time.


def numbers_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation gives its tickets the numbers of the one before."""
    monkeypatch.setattr(JobTerms, "first_ticket", property(lambda self: 1))


def nobody_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers go on with their next batch after a rollback."""
    monkeypatch.setattr(ClientEngine, "take_rollback", lambda self: setattr(self, "rolled_back", False))


def pruned_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are pruned before the new one is complete."""
    complete = Store.complete

    def early(self: Store, about: object) -> None:
        for name in self.names()[:-1]:
            self.disk.remove_folder(self.root / name)
        complete(self, about)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "complete", early)


def generation_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the generation is not looked at: the log's name counts."""
    monkeypatch.setattr(fence, "_read", lambda store: ("", False))


def payloads_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard does not save what was committed and is not applied."""
    state = Shard.state

    def without(self: Shard) -> object:
        kept, self.payloads = self.payloads, set()
        found, self.payloads = state(self), kept
        return found

    monkeypatch.setattr(Shard, "state", without)


@pytest.mark.parametrize(
    "plant", [numbers_come_again, nobody_goes_back, pruned_first, generation_unread, payloads_lost]
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert play_all(seed for seed in range(16_000) if job_of(seed).disk).failed is not None


def test_a_failure_is_told_as_the_shortest_story(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody_goes_back(monkeypatch)
    failed = play_all(range(400)).failed
    assert failed is not None
    fault, story = shortest(failed[0])
    assert "that do not count" in fault
    # It takes a start, a commit, the loss of a server or of a worker, and a return; a schedule has hundreds of steps.
    assert 0 < len(story) < 100
    assert any(line.startswith(("kill", "power", "partition", "SIGTERM", "connection")) for line in story), (
        story
    )


def test_consecutive_seeds_take_all_policies_in_turn() -> None:
    policies = Counter(job_of(FIRST_SEED + number).setting.policy for number in range(4 * len(POLICIES)))
    assert set(policies) == set(POLICIES) and set(policies.values()) == {4}
