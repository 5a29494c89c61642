"""A job in which every batch writes an element of its own, killed again and again: final weights say how often each
batch counted, under every policy. A campaign of many kills: PARAMSERVER_EFFORT=soak pytest"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslab.runs.folder import Run
from psserver import policies
from psserver.weights_file import load
from pswire.model.plan import VariableSpec, make_plan
from tests.cluster.cluster import ROOT, entries_of
from tests.repetitions import SOAK, usually
from tests.replay.command import ps_lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROOM, LR = 200, 1.0
BATCHES, KILLS = (190, 12) if SOAK else (120, 2)
# Initial values, as `tests/cluster/numpy_worker.py` has them.
START = {"w": np.full((100, 10), 0.5, np.float32), "b": np.ones(3, np.float32)}
# To drop contributions, or to cancel tickets of which the commit is on its way, is their rule.
DROPPING = {
    *("bounded", "k-async", "k-batch-async", "k-sync", "k-batch-sync", "rennala", "ringmaster"),
    # Of a round of too few, behind a loss.
    *("median", "trimmed-mean", "krum"),
}
# What tolerates bad workers needs more of them.
WORKERS = {"trimmed-mean": 5, "krum": 5}


def killed(folder: Path, policy: str) -> tuple[Run, int]:
    """A run of that policy, and how many processes of it were killed."""
    arguments = ["--seconds", "0.01", "--batches", str(BATCHES), "--ledger", str(ROOM)]
    options = ["--out", str(folder), "--runs", "1", "--no-reference", "--kind", "kill", "--kills", str(KILLS)]
    options += ["--every", "6", "--seed", "11", "--json", "--set", f"policy.name={policy}"]
    # Krum compares whole gradients.
    size = {"cluster.workers": WORKERS.get(policy, 2), "cluster.servers": 1 if policy == "krum" else 2}
    chosen = {**size, "optimizer.name": "sgd", "optimizer.learning_rate": LR}
    options += [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    options += ["--set", f"job.arguments={json.dumps(arguments)}"]
    done = ps_lab("chaos", Path(__file__).with_name("numpy.toml"), *options)
    report = json.loads(done.out.splitlines()[-1])
    (told,) = report["rounds"]
    assert done.code == 0 and told["problems"] == [], told
    return Run(folder / "run-1"), len(told["disturbances"])


def counted(run: Run) -> np.ndarray:
    """What was added to each batch's element."""
    saved = load(run.path / "weights.safetensors")
    assert saved.order is not None
    plan = make_plan([VariableSpec(name, saved.arrays[name].shape) for name in saved.order], 2)
    last, first = (
        np.concatenate(plan.scatter([arrays[name] for name in saved.order]))
        for arrays in (saved.arrays, START)
    )
    return last - first


def promised(run: Run) -> tuple[np.ndarray, Counter[tuple[str, int]]]:
    """What the log says was added, and how often each batch was applied."""
    whose: dict[int, tuple[str, int]] = {}
    added, applied = np.zeros(1003), Counter[tuple[str, int]]()
    for entry in run.path.joinpath("decisions.jsonl").read_text().splitlines():
        fact: dict[str, Any] = json.loads(entry)
        if fact["kind"] == "commit":
            whose[fact["ticket"]] = fact["worker"], fact["batch"]
        elif fact["kind"] == "apply":
            for part in fact["parts"]:
                worker, batch = whose[part["ticket"]]
                applied[worker, batch] += 1
                added[int(worker[1:]) * ROOM + batch] += LR * fact["lr_scale"] * part["weight"]
    return added, applied


@pytest.mark.parametrize("policy", usually(["async"], list(policies.names())))
def test_every_batch_counts_once_whoever_is_killed(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run, kills = killed(tmp_path / "out", policy)
    record_property("kills", kills)
    print(f"{policy}: {kills} kills")
    added, applied = promised(run)
    commits = Counter((entry["worker"], entry["batch"]) for entry in entries_of(run, "commit"))
    assert set(commits.values()) == {1} and set(applied.values()) == {1}
    (job,) = entries_of(run, "job")
    if job.get("local") is None:
        # Of a local rule a commit is of several batches.
        ranks = range(WORKERS.get(policy, 2))
        missing = {(f"w{rank}", batch) for rank in ranks for batch in range(BATCHES)} - set(commits)
        assert not missing or policy in DROPPING, missing
        dropped = {entry["ticket"] for entry in entries_of(run, "drop")}
        assert len(applied) == len(commits) - len(dropped)
        assert not dropped or policy in DROPPING, f"{len(dropped)} batches were dropped"
        if job.get("tensors") is None:
            assert np.abs(counted(run) - added).max() < 1e-5
            assert np.count_nonzero(counted(run)) == len(applied)
