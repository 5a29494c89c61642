"""Refused updates in whole runs: checked, replayed to the bit, and never by a robust policy's honest majority."""

from pathlib import Path
from typing import Any

import pytest

from pslab.check.checker import check_run
from pslab.replay.run_folder import prove, replay_of
from pslab.replay.worker_replica import DataError
from pslab.runs.folder import Run
from pswire.decisions.entries import NONFINITE
from tests.replay.simulated import Record, edit_log, simulate

# Named as a problem of one's own, since options of the built-in one have a bound.
QUADRATIC = "pslab.simulator.problems.quadratic:Quadratic"
# The last of four workers is pulled so far away that the squares of two of its gradients have an infinite sum.
FAR = 1.8e19


def poisoned(folder: Path, policy: str, knobs: dict[str, Any] | None = None, **sections: Any) -> Run:
    return simulate(
        folder,
        policy,
        knobs,
        optimizer={"name": "adagrad", "learning_rate": 0.1},
        cluster={"servers": 2, "workers": 4, "nonfinite_limit": 1000} | sections.pop("cluster", {}),
        simulation={
            "problem": QUADRATIC,
            "compute": "exponential(1)",
            "options": {
                "centres": [0.0, 0.0, 0.0, FAR],
                "dimensions": 2,
                "condition": 1e9,
                "batches_per_epoch": 12,
            },
        },
        **sections,
    )


def kinds(run: Run) -> list[str]:
    return [entry.kind for entry in run.decisions()]


SUMMING: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "async": ("async", {}, {}),
    "bounded": ("bounded", {"aggregate": 2, "max_staleness": 1}, {}),
    "ssp": ("ssp", {"slack": 2}, {}),
    "k-batch-async": ("k-batch-async", {"aggregate": 2}, {}),
    "k-sync, cancelling": ("k-sync", {"aggregate": 2}, {}),
    "dc-asgd-a": ("dc-asgd-a", {}, {}),
    "gap-aware": ("gap-aware", {}, {}),
}


@pytest.mark.parametrize("name", SUMMING)
def test_training_goes_on_without_the_bad_one(tmp_path: Path, name: str) -> None:
    policy, knobs, sections = SUMMING[name]
    run = poisoned(tmp_path / "run", policy, knobs, **sections)
    made = kinds(run)
    assert made.count("refuse") >= 2
    assert made.count("apply") >= 5
    verdict = check_run(run)
    assert verdict.ok, [str(violation) for violation in verdict.violations]
    counts = run.summary.contributions
    assert counts["w3"].dropped >= 2
    assert all(each.committed == each.applied + each.dropped for each in counts.values())


@pytest.mark.parametrize("name", SUMMING)
def test_a_replay_refuses_the_same_and_comes_to_the_same_bits(tmp_path: Path, name: str) -> None:
    policy, knobs, sections = SUMMING[name]
    run = poisoned(tmp_path / "run", policy, knobs, **sections)
    replay = replay_of(run)
    result = replay.run()
    assert prove(run, replay).holds
    assert result.first is None
    assert result.refused == kinds(run).count("refuse")


@pytest.mark.parametrize(
    ("policy", "knobs", "servers"),
    [("median", {}, 2), ("trimmed-mean", {"trim": 1}, 2), ("krum", {"byzantine": 0, "select": 1}, 1)],
)
def test_robust_policies_refuse_nothing(
    tmp_path: Path, policy: str, knobs: dict[str, Any], servers: int
) -> None:
    """What is not finite is not chosen: the honest ones' update is made, up to the last one."""
    run = poisoned(tmp_path / "run", policy, knobs, cluster={"servers": servers})
    made = kinds(run)
    assert made.count("refuse") == 0 and made.count("apply") >= 10
    assert run.summary.metrics["distance"] > FAR / 10, "the honest ones are far from the mean of all centres"
    assert check_run(run).ok


def test_a_replay_names_a_refusal_that_was_none(tmp_path: Path) -> None:
    """An update that is finite, which the log says was refused."""
    run = simulate(tmp_path / "run", "async", simulation={"problem": "quadratic"}, run={"versions": 3})

    def edit(records: list[Record]) -> None:
        at = next(n for n, record in enumerate(records) if record["kind"] == "apply")
        records[at]["kind"] = "refuse"

    edit_log(run, edit)
    with pytest.raises(DataError, match=r"refuses version 1 as not finite, but it would be finite here"):
        replay_of(run).run()


def _without_a_drop(records: list[Record]) -> None:
    at = next(n for n, record in enumerate(records) if record.get("reason") == NONFINITE)
    del records[at]


def _another_reason(records: list[Record]) -> None:
    next(record for record in records if record.get("reason") == NONFINITE)["reason"] = "stale"


def _without_the_refusal(records: list[Record]) -> None:
    del records[next(n for n, record in enumerate(records) if record["kind"] == "refuse")]


def _another_version(records: list[Record]) -> None:
    next(record for record in records if record["kind"] == "refuse")["version"] += 1


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (_without_a_drop, "before tickets"),
        (_another_reason, "before tickets"),
        (_without_the_refusal, "but no update of it was refused"),
        (_another_version, "is refused, but"),
    ],
)
def test_the_check_finds_what_was_edited(tmp_path: Path, edit: Any, found: str) -> None:
    run = poisoned(tmp_path / "run", "async")
    edit_log(run, edit)
    verdict = check_run(run)
    assert any(found in violation.message for violation in verdict.violations)


def test_so_many_in_a_row_end_a_simulated_run(tmp_path: Path) -> None:
    from pslab.launch.simulated import run_simulated
    from pswire.config.experiment import parse_experiment
    from pswire.exits import ExitCode
    from tests.replay.simulated import document

    experiment = parse_experiment(
        document(
            "sync",
            optimizer={"name": "adagrad", "initial_accumulator_value": 3.4e38},
            cluster={"nonfinite_limit": 3},
            simulation={"problem": QUADRATIC, "options": {"centres": [FAR] * 4, "dimensions": 1}},
        ),
        "test",
    )
    finished = run_simulated(experiment, out=tmp_path / "run", quiet=True)
    run = Run(finished.folder)
    assert kinds(run).count("refuse") == 3 and kinds(run).count("apply") == 0
    assert finished.result.verdict.code == ExitCode.DIVERGED
    assert check_run(run).ok
