"""Schedules of crashes, worker faults, a bad network and disk faults: what goes on is whole, and nothing counts twice.

Each schedule is a simulated job of up to five lives on one disk, drawn by hypothesis, which shrinks one that fails. Few
here; `scripts/soak lives` takes many.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from pslab.replay.run_folder import prove, replay_of
from psserver.policies import names as policy_names
from tests.checkpoint.fake_disk import FAULTS
from tests.checkpoint.lives import Life, check, live
from tests.repetitions import repetitions
from tests.replay.simulated import document

# A soak's hundreds of lives take a busy machine longer than a test usually may.
pytestmark = pytest.mark.timeout(repetitions(300, soak=3600))

WORKERS = 3
# They ask for more workers.
POLICIES = [name for name in policy_names() if name not in ("krum", "trimmed-mean")]


def times(draw: st.DrawFn, what: str) -> list[dict[str, Any]]:
    """Of faults of workers: in virtual seconds."""
    found = draw(
        st.lists(
            st.tuples(st.integers(0, WORKERS - 1), st.integers(0, 200)), max_size=2, unique_by=lambda f: f[0]
        )
    )
    extra = {"crashes": {"restart": 2.5}, "disconnects": {"seconds": 1.0}}[what]
    return [{"worker": worker, "at": at / 10, **extra} for worker, at in found]


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    policy = draw(st.sampled_from(POLICIES))
    faults = {"crashes": times(draw, "crashes"), "disconnects": times(draw, "disconnects")}
    network = draw(st.booleans())
    faults |= {"loss": 0.1, "duplicate": 0.1} if network else {}
    every = draw(st.sampled_from(["1 version", "2 versions", "5 versions", "3 s"]))
    run = {"checkpoint_every": every, "keep": draw(st.integers(1, 3)), "seed": draw(st.integers(0, 99))}
    return document(
        policy,
        {},
        run=run,
        cluster={"workers": WORKERS},
        faults=faults,
        links={"latency": 0.05 if network else 0.0},
        optimizer=draw(st.sampled_from([{"name": "adam", "learning_rate": 0.01}, {"name": "momentum"}])),
    )


@st.composite
def life(draw: st.DrawFn) -> Life:
    return Life(
        servers=draw(st.integers(1, 3)),
        crash_after=draw(st.integers(0, 150)),
        power=draw(st.booleans()),
        fault=draw(st.sampled_from(["", *FAULTS])),
        at=draw(st.integers(0, 150)),
        flip=draw(st.sampled_from([False, False, False, True])),
    )


@settings(
    max_examples=repetitions(6, soak=1500),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(job=jobs(), lives=st.lists(life(), max_size=4), last=st.integers(1, 3), replayed=st.integers(0, 9))
def test_whatever_crashes_and_breaks(
    job: dict[str, Any], lives: list[Life], last: int, replayed: int
) -> None:
    """The log that is left passes the check, has every batch once, and (one in ten) is replayed to the bit."""
    root = Path(tempfile.mkdtemp(prefix="lives-"))
    try:
        run, told = live(job, [*lives, Life(servers=last)], root / "run", len(lives))
        check(run)
        if not replayed:
            replay = replay_of(run)
            replay.run()
            assert prove(run, replay).holds
        for fault, count in told.faults.items():
            event(f"{fault}: {bool(count)}")
        event(f"resumed {told.resumed}, refused {told.refused}")
    finally:
        shutil.rmtree(root)


@settings(max_examples=repetitions(2, soak=300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lives=st.lists(life(), min_size=1, max_size=3), last=st.integers(1, 3))
def test_a_barrier_ends_with_the_bits_of_a_run_that_was_left_alone(lives: list[Life], last: int) -> None:
    """And with the same batches, whenever the servers die, on whatever number of servers they come back."""
    job = document("sync", {}, run={"checkpoint_every": "2 versions"}, cluster={"workers": WORKERS})
    root = Path(tempfile.mkdtemp(prefix="lives-"))
    try:
        whole, _ = live(job, [Life(servers=2)], root / "whole", 0)
        run, _ = live(job, [*lives, Life(servers=last)], root / "run", 1)
        assert check(run) == check(whole)
        assert run.summary.weights_sha256 == whole.summary.weights_sha256
    finally:
        shutil.rmtree(root)
