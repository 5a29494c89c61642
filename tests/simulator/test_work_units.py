"""Work units in the simulated cluster: the same state machine, with crashes, lost messages and a thousand workers."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pslab.replay.run_folder import prove, replay_of
from pslab.simulator import SimulationError, build
from psserver.decisions import entries
from tests.replay.simulated import simulate as simulate_folder
from tests.simulator.lab import Outcome, experiment, simulate

ROUGH = {
    "faults": {
        "loss": 0.1,
        "duplicate": 0.1,
        "crashes": [{"worker": 1, "at": 9.0, "restart": 3.0}, {"worker": 2, "at": 8.0}],
        "leaves": [{"worker": 0, "at": 30.0}],
        "disconnects": [{"worker": 3, "at": 7.0, "seconds": 30.0}],
        "joins": [{"worker": 4, "at": 12.0}],
    },
    "links": {"latency": 0.1},
}
POLICIES: dict[str, dict[str, Any]] = {
    "sync": {},
    "k-sync": {"aggregate": 2},
    "async": {},
    "bounded": {"max_staleness": 0},
    "ssp": {"slack": 1},
    "softsync": {"n": 2},
    "local-sgd": {"steps": 4},
}


def counted(outcome: Outcome) -> Counter[tuple[int, int, int]]:
    """How often each part was applied."""
    places = {
        entry.ticket: (entry.epoch, entry.unit, entry.part)
        for entry in outcome.entries
        if isinstance(entry, entries.Grant)
    }
    applied = [
        part.ticket for entry in outcome.entries if isinstance(entry, entries.Apply) for part in entry.parts
    ]
    return Counter(places[ticket] for ticket in applied)  # type: ignore[misc]


@pytest.mark.parametrize("rough", [False, True], ids=["calm", "rough"])
@pytest.mark.parametrize("policy", POLICIES)
def test_each_unit_counts_once_per_epoch(policy: str, rough: bool) -> None:
    given = experiment(
        policy,
        policy_knobs=POLICIES[policy],
        job={"module": "none:none", "epochs": 3},
        cluster={"worker_timeout": 2.0},
        simulation={"problem": "none", "compute": "exponential(1)", "units": 25, "batches": 8},
        **(ROUGH if rough else {}),
    )
    outcome = simulate(given)
    assert outcome.summary["reason"] == "all work units are done"
    steps = POLICIES[policy].get("steps", 1)
    wanted = {(e, u, p) for e in range(3) for u in range(25) for p in range(8 // steps)}
    assert counted(outcome) == Counter(wanted)
    assert outcome.verdict().ok, outcome.verdict().violations


def test_a_slow_worker_takes_less_and_holds_up_nobody() -> None:
    """Four workers, one of them ten times as slow; with parts of their own the run takes ten times as long."""
    common = {"compute": "constant(1)", "factors": {3: 10.0}, "problem": "none"}
    dealt = simulate(experiment("async", simulation=common | {"units": 310}))
    own = simulate(experiment("async", simulation=common | {"batches": 100}))
    share = dealt.applied_by
    assert share["w3"] == pytest.approx(10, abs=1) and share["w0"] == pytest.approx(100, abs=1)
    assert (dealt.seconds, own.seconds) == (pytest.approx(100, abs=10), pytest.approx(1000, abs=10))


@pytest.mark.parametrize("policy", ["async", "local-sgd"])
def test_a_problem_is_dealt_and_its_run_replayed_to_the_bit(tmp_path: Path, policy: str) -> None:
    run = simulate_folder(
        tmp_path / "run",
        policy,
        simulation={"units": 12},
        job={"module": "none:none", "epochs": 2},
        faults={"crashes": [{"worker": 1, "at": 3.0}]},
    )
    assert run.summary.reason == "all work units are done"
    replay = replay_of(run)
    result = replay.run()
    assert result.first is None, str(result.first)
    assert prove(run, replay).holds
    assert result.agreed == result.computed > 10


def test_the_same_seed_gives_the_same_log() -> None:
    sections = {"simulation": {"compute": "exponential(1)", "units": 40}, "run": {"seed": 7}}
    assert simulate(experiment("async", **sections)).lines == simulate(experiment("async", **sections)).lines


@pytest.mark.parametrize(
    ("policy", "sections", "message"),
    [
        (
            "easgd",
            {"simulation": {"units": 5, "problem": "none"}},
            "its workers take steps before they have a ticket",
        ),
        (
            "sync",
            {"simulation": {"units": 5, "problem": "job"}, "job": {"module": "a:B"}},
            "declares its own work units",
        ),
        (
            "async",
            {"simulation": {"units": 10_000, "problem": "logistic"}},
            "no more units than samples",
        ),
    ],
)
def test_what_cannot_be_dealt(policy: str, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        build(experiment(policy, **sections), lambda _: lambda _: None)  # type: ignore[arg-type, return-value]
