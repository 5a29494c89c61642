"""Elements kept back in whole runs: told in the log, checked, and replayed to the bit on any number of servers."""

from pathlib import Path
from typing import Any

import pytest

from pslab.check.checker import check_run
from pslab.experiment import Experiment
from pslab.launch.simulated import run_simulated
from pslab.replay.run_folder import prove, replay_of
from pslab.replay.worker_replica import DataError
from pslab.runs.folder import Run
from psserver.decisions.entries import Nonfinite, Stop
from pswire.exits import ExitCode
from tests.promises import promise
from tests.replay.simulated import Record, document, edit_log, simulate

# Named as a problem of one's own, since options of the built-in one have a bound.
QUADRATIC = "pslab.simulator.problems.quadratic:Quadratic"
# The last of four workers is pulled so far away that the squares of two of its gradients have an infinite sum.
FAR = 1.8e19


def sections(servers: int = 2, **cluster: object) -> dict[str, Any]:
    return {
        "optimizer": {"name": "adagrad", "learning_rate": 0.1},
        "cluster": {"servers": servers, "workers": 4, "nonfinite_limit": 1000} | cluster,
        "simulation": {
            "problem": QUADRATIC,
            "compute": "exponential(1)",
            "options": {
                "centres": [0.0, 0.0, 0.0, FAR],
                "dimensions": 2,
                "condition": 1e9,
                "batches_per_epoch": 12,
            },
        },
    }


def poisoned(folder: Path, policy: str, knobs: dict[str, Any] | None = None, **cluster: Any) -> Run:
    return simulate(folder, policy, knobs, **sections(**cluster))


def kept(run: Run) -> list[Nonfinite]:
    return [entry.fact for entry in run.decisions() if isinstance(entry.fact, Nonfinite)]


def kinds(run: Run) -> list[str]:
    return [entry.kind for entry in run.decisions()]


SUMMING: dict[str, tuple[str, dict[str, Any]]] = {
    "async": ("async", {}),
    "bounded": ("bounded", {"aggregate": 2, "max_staleness": 1}),
    "ssp": ("ssp", {"slack": 2}),
    "k-batch-async": ("k-batch-async", {"aggregate": 2}),
    "k-sync, cancelling": ("k-sync", {"aggregate": 2}),
    "dc-asgd-a": ("dc-asgd-a", {}),
    "gap-aware": ("gap-aware", {}),
}


@pytest.mark.parametrize("name", SUMMING)
def test_a_replay_keeps_back_the_same_and_comes_to_the_same_bits(tmp_path: Path, name: str) -> None:
    policy, knobs = SUMMING[name]
    run = poisoned(tmp_path / "run", policy, knobs)
    assert len(kept(run)) >= 2 and kinds(run).count("apply") >= 5
    verdict = check_run(run)
    assert verdict.ok, [str(violation) for violation in verdict.violations]
    assert run.summary.kept_back.startswith(f"{sum(each.kept for each in kept(run))} elements in ")
    replay = replay_of(run)
    result = replay.run()
    assert prove(run, replay).holds
    assert result.first is None
    assert result.kept == sum(each.kept for each in kept(run))


@promise("Any number of servers keeps the same elements back, and ends the job at the same version")
@pytest.mark.parametrize("limit", [3, 1000])
def test_any_number_of_servers_keeps_back_the_same(tmp_path: Path, limit: int) -> None:
    found = []
    for servers in (1, 2):
        given = sections(servers, nonfinite_limit=limit)
        given["optimizer"]["initial_accumulator_value"] = 3.4e38
        given["simulation"]["options"]["centres"] = [0.0, 0.0, FAR, FAR]
        experiment = Experiment.parse(document("sync", **given), "test")
        finished = run_simulated(experiment, out=tmp_path / f"{servers}", quiet=True)
        run = Run(finished.folder)
        assert check_run(run).ok
        (stop,) = [entry.fact for entry in run.decisions() if isinstance(entry.fact, Stop)]
        verdict = finished.result.verdict.code
        found.append((kept(run), stop.version, verdict, run.summary.weights_sha256))
    assert found[0] == found[1] and found[0][0]
    assert (found[0][2] == ExitCode.DIVERGED) == (limit == 3)


@pytest.mark.parametrize(
    ("policy", "knobs", "servers"),
    [("median", {}, 2), ("trimmed-mean", {"trim": 1}, 2), ("krum", {"byzantine": 0, "select": 1}, 1)],
)
def test_robust_policies_keep_nothing_back(
    tmp_path: Path, policy: str, knobs: dict[str, Any], servers: int
) -> None:
    """What is not finite is not chosen: the honest ones' update is made, up to the last one."""
    run = poisoned(tmp_path / "run", policy, knobs, servers=servers)
    assert not kept(run) and kinds(run).count("apply") >= 10
    assert run.summary.metrics["distance"] > FAR / 10, "the honest ones are far from the mean of all centres"
    assert check_run(run).ok


def _more(records: list[Record]) -> None:
    next(record for record in records if record["kind"] == "nonfinite")["kept"] += 1


def _elsewhere(records: list[Record]) -> None:
    next(record for record in records if record["kind"] == "nonfinite")["variable"] = "y"


@pytest.mark.parametrize("edit", [_more, _elsewhere])
def test_a_replay_names_what_was_not_kept_back(tmp_path: Path, edit: Any) -> None:
    run = poisoned(tmp_path / "run", "async")
    edit_log(run, edit)
    with pytest.raises(DataError, match=r"were kept back, most of .*; here "):
        replay_of(run).run()


def _a_version_to_come(records: list[Record]) -> None:
    next(record for record in records if record["kind"] == "nonfinite")["version"] += 100


def _twice(records: list[Record]) -> None:
    at = [n for n, record in enumerate(records) if record["kind"] == "nonfinite"]
    records[at[1]]["version"] = records[at[0]]["version"]


def _none(records: list[Record]) -> None:
    next(record for record in records if record["kind"] == "nonfinite")["kept"] = 0


@pytest.mark.parametrize("edit", [_a_version_to_come, _twice, _none])
def test_the_check_finds_what_was_edited(tmp_path: Path, edit: Any) -> None:
    run = poisoned(tmp_path / "run", "async")
    edit_log(run, edit)
    assert any("kept back" in violation.message for violation in check_run(run).violations)
