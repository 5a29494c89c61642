"""A job goes on as if nothing had happened: the same log, the same bits.

10 schedules per built-in policy, or 200 in a soak: `tests.state.schedules.run`.
"""

from collections.abc import Callable, Mapping

import pytest

from pslab.verify.invariants import InvariantViolation
from psserver.coordinator.state import saving as coordinator_state
from psserver.optimizers import names as optimizer_names
from psserver.policies import names as policy_names
from psserver.policies.parts import saved
from psserver.policies.parts.dssp import DynamicSlack
from psserver.policies.parts.view import View
from psserver.shard import ShardError
from psserver.shard import state as shard_state
from psserver.shard.accumulator import RunningSum
from psserver.shard.arena import Arena
from psserver.shard.staging import Staging
from tests.repetitions import FIRST_SEED, SOAK, repetitions
from tests.state.schedules import Report, Setting, play, run

SCHEDULES = repetitions(10, soak=200)


@pytest.mark.timeout(3600 if SOAK else 600)
def test_restored_in_the_middle() -> None:
    report = run(SCHEDULES, FIRST_SEED)
    print(report)
    assert set(report.schedules) == set(policy_names())
    if SCHEDULES < 10:
        return
    # It was worth it: everything happened, and often.
    assert set(report.optimizers) == set(optimizer_names())
    wanted = {"abandon", "back", "cancel", "drop", "fold", "leave", "lost"}
    assert wanted <= report.kinds
    assert report.restarts > report.schedules.total() and report.resized > len(report.schedules)


# What is lost must be found: one thing at a time is left out of what is restored.


def no_requests(patch: pytest.MonkeyPatch) -> None:
    """Members forget what they asked for."""
    roster = coordinator_state.roster_from

    def forgetful(state: coordinator_state.CoordinatorState, shift: float) -> object:
        made = roster(state, shift)
        for member in made.present.values():
            member.requested = None
        return made

    patch.setattr(coordinator_state, "roster_from", forgetful)


def no_batches(patch: pytest.MonkeyPatch) -> None:
    roster = coordinator_state.roster_from

    def forgetful(state: coordinator_state.CoordinatorState, shift: float) -> object:
        made = roster(state, shift)
        for tally in made.tallies.values():
            tally.next_batch = 0
        return made

    patch.setattr(coordinator_state, "roster_from", forgetful)


def no_clocks(patch: pytest.MonkeyPatch) -> None:
    restored = saved.restored

    def forgetful(data: object) -> View:
        assert isinstance(data, dict)
        return restored({**data, "members": [{**member, "clock": 0} for member in data["members"]]})

    patch.setattr("psserver.policies.composed.restored", forgetful)


def no_paces(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DynamicSlack, "restore", lambda self, view, state: None)


def no_pending_factor(patch: pytest.MonkeyPatch) -> None:
    restore = RunningSum.restore

    def forgetful(self: RunningSum, added: object) -> None:
        restore(self, added)  # type: ignore[arg-type]
        self._pending = 1.0

    patch.setattr(RunningSum, "restore", forgetful)


def no_bases(patch: pytest.MonkeyPatch) -> None:
    restore = Arena.restore

    def forgetful(
        self: Arena, versions: Mapping[int, object], pins: object, bases: Mapping[int, int]
    ) -> None:
        restore(self, versions, pins, dict.fromkeys(bases, max(versions, default=0)))  # type: ignore[arg-type]

    patch.setattr(Arena, "restore", forgetful)


def no_payloads(patch: pytest.MonkeyPatch) -> None:
    restore = Staging.restore
    patch.setattr(Staging, "restore", lambda self, tickets, payloads, rows: restore(self, tickets, {}, {}))


def no_arrays(patch: pytest.MonkeyPatch) -> None:
    """Neither the optimizer's nor the compensator's."""
    take_up = shard_state.take_up

    def forgetful(state: shard_state.ShardState, shard: shard_state.ShardParts) -> None:
        take_up(state, shard)
        for arrays in (*shard.updater.slots.values(), shard.updater.memory):
            for values in arrays.values():
                values.fill(0)

    patch.setattr("psserver.shard.shard.take_up", forgetful)


@pytest.mark.parametrize(
    ("setting", "plant"),
    [
        (Setting("async", 3), no_requests),
        (Setting("async", 3), no_batches),
        (Setting("ssp", 4, {"slack": 1}), no_clocks),
        (Setting("dssp", 3, {"lower": 0, "upper": 3}), no_paces),
        (
            Setting("bounded", 3, {"on_stale": "downweight", "aggregate": 2, "max_staleness": 0}),
            no_pending_factor,
        ),
        (Setting("dc-asgd", 3, {"compensation": 0.5}), no_bases),
        (Setting("sync", 3), no_payloads),
        (Setting("async", 3), no_arrays),
        (Setting("gap-aware", 3), no_arrays),
    ],
)
def test_what_is_left_out_is_found(
    setting: Setting, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvariantViolation, ShardError)):
        for seed in range(60):
            play(setting, seed, Report())
