"""Real processes: a worker, a shard and the coordinator are killed, or stopped, or cut off, and nothing is lost."""

import json
from pathlib import Path

import pytest

from pslab.runs.folder import Run
from tests.chaos.campaign import KINDS, Kind, Outcome
from tests.chaos.running import batches_of, disturbed
from tests.cluster.cluster import entries_of
from tests.promises import promise
from tests.repetitions import SOAK, seeds

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600 if SOAK else 600)]

# By which the first three disturbances come to one process of each role. Of those that stop one, a server stands still
# for a while and a worker for longer than its timeout.
SEEDS: dict[Kind, int] = {"kill": 140, "stop": 7654, "cut": 11}


def disturbed_by(folder: Path, kind: Kind, *overrides: str) -> tuple[Run, list[Outcome]]:
    """A run in which that happens to a process of each role. The data ends when the job has recovered from the last."""
    end = folder / "end-of-data"
    arguments = json.dumps(["--seconds", "0.02", "--until", str(end)])
    run, struck = disturbed(
        folder / "run",
        "numpy.toml",
        SEEDS[kind],
        3,
        f"job.arguments={arguments}",
        *overrides,
        kinds=(kind,),
        recovered=end.touch,
    )
    assert {each.disturbance.role for each in struck} == {"worker", "shard", "coordinator"}
    assert all(each.seconds for each in struck)
    assert batches_of(run, "w0") and batches_of(run, "w1")
    return run, struck


@promise("A job survives kill -9 of any process.")
def test_a_process_of_each_role_is_killed(tmp_path: Path) -> None:
    run, struck = disturbed_by(tmp_path, "kill")
    assert all(each.rolled_back is not None for each in struck if each.disturbance.role != "worker")
    assert len(entries_of(run, "restore")) >= 1


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["stop", "cut"])
def test_a_process_of_each_role_is_stopped_or_cut_off(tmp_path: Path, kind: Kind) -> None:
    """Whether a server is given up for that depends on the machine: no more is said than that nothing is lost."""
    disturbed_by(tmp_path, kind)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", list(seeds(1, soak=3)))
@pytest.mark.parametrize("model", ["numpy", "tables"])
def test_whatever_happens_to_processes_nothing_is_lost(tmp_path: Path, model: str, seed: int) -> None:
    """Twelve disturbances of all kinds; some strike while the job recovers from the one before."""
    batches = json.dumps(["--batches", "1500", "--seconds", "0.02"])
    script = f"job.script=tests/cluster/{model}_worker.py"
    run, struck = disturbed(
        tmp_path / "run", "numpy.toml", seed, 12, script, f"job.arguments={batches}", kinds=KINDS
    )
    print([(each.disturbance.role, each.disturbance.kind, each.seconds) for each in struck])
    assert len(batches_of(run, "w0")) == len(batches_of(run, "w1")) == 1500
