"""A job in which every batch writes an element of its own, killed again and again: final weights say how often each
batch counted, under every policy, in a loop of `psworker.train`, and in `fit`. A campaign
of many kills: scripts/soak ledger"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslab.runs.folder import Run
from psserver.policies.builtin import BUILTIN
from psserver.policies.builtin.local import __name__ as local_rules
from psserver.weights_file import load
from pswire.model.plan import VariableSpec, make_plan
from tests.chaos.running import disturbed
from tests.cluster.cluster import entries_of
from tests.promises import promise
from tests.repetitions import FIRST_SEED, SOAK, usually

pytestmark = [pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(900)]

ROOM, LR = 200, 1.0
# Of a worker.
EPOCHS, STEPS = 2, 95 if SOAK else 60
BATCHES, KILLS = EPOCHS * STEPS, 12 if SOAK else 2
# To drop contributions, or to cancel tickets of which the commit is on its way, is their rule.
DROPPING = {
    *("bounded", "k-async", "k-batch-async", "k-sync", "k-batch-sync", "rennala", "ringmaster"),
    # Of a round of too few, behind a loss.
    *("median", "trimmed-mean", "krum"),
}
# What tolerates bad workers needs more of them.
WORKERS = {"trimmed-mean": 5, "krum": 5}
# `fit` refuses policies whose workers do more than gradients.
GRADIENTS = [name for name, spec in BUILTIN.items() if spec.__module__ != local_rules]
LOOPS = {"train": list(BUILTIN), "fit": GRADIENTS}
CASES = [(loop, policy) for loop, names in LOOPS.items() for policy in names]
# Of `fit`, which does not go back in a process that lives.
NOT_AGAIN = re.compile(
    r"(\d+) committed batch(?:es)? of this worker, from batch (\d+) on, and the batch in progress"
)
UNDER_WAY = re.compile(r"batch (\d+), on which this worker was working, does not count")

Batch = tuple[str, int]


@dataclass(frozen=True)
class Killed:
    """A run under that policy, `kills` processes of which were killed."""

    loop: str
    policy: str
    run: Run
    kills: int

    @property
    def workers(self) -> list[str]:
        return [f"w{rank}" for rank in range(WORKERS.get(self.policy, 2))]

    @property
    def log(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in self.run.path.joinpath("decisions.jsonl").read_text().splitlines()
        ]

    def said(self, worker: str) -> str:
        return (self.run.path / "logs" / f"worker-{worker[1:]}.log").read_text()


def killed(folder: Path, loop: str, policy: str) -> Killed:
    workers = WORKERS.get(policy, 2)
    # Krum compares whole gradients.
    chosen = {"cluster.workers": workers, "cluster.servers": 1 if policy == "krum" else 2}
    if loop == "train":
        chosen |= {"optimizer.name": "sgd", "optimizer.learning_rate": LR}
        arguments = ["--seconds", "0.01", "--batches", str(BATCHES), "--ledger", str(ROOM)]
    else:
        script = Path(__file__).with_name("fit_ledger.py")
        chosen |= {"optimizer.name": "from-job", "optimizer.learning_rate": 0, "job.script": str(script)}
        # In a process that lives `fit` does not go back behind the loss of a server.
        chosen |= {"cluster.allow_missing": "true"}
        arguments = [str(STEPS), str(EPOCHS)]
    overrides = [f"{key}={value}" for key, value in {"policy.name": policy, **chosen}.items()]
    overrides.append(f"job.arguments={json.dumps(arguments)}")
    seed = (FIRST_SEED + 11) % 2**31
    run, struck = disturbed(folder, "numpy.toml", seed, KILLS, *overrides, kinds=("kill",))
    return Killed(loop, policy, run, len(struck))


def counted(of: Killed) -> np.ndarray:
    """What was added to each batch's element."""
    saved = load(of.run.path / "weights.safetensors")
    assert saved.order is not None
    arrays = [saved.arrays[name] for name in saved.order]
    if of.loop != "train":
        (only,) = arrays
        return only
    # Initial values, as `tests/cluster/numpy_worker.py` has them.
    start = {"w": np.full((100, 10), 0.5, np.float32), "b": np.ones(3, np.float32)}
    plan = make_plan([VariableSpec(name, saved.arrays[name].shape) for name in saved.order], 2)
    first = [start[name] for name in saved.order]
    return np.concatenate(plan.scatter(arrays)) - np.concatenate(plan.scatter(first))


def element(of: Killed, batch: Batch) -> int:
    worker, number = batch
    return int(worker[1:]) * ROOM + (number if of.loop == "train" else number % STEPS)


def promised(of: Killed) -> tuple[np.ndarray, list[Batch], list[Batch]]:
    """What the log says was added; the batches that were committed, and those that were applied."""
    whose: dict[int, Batch] = {}
    added, applied = np.zeros(1003), list[Batch]()
    for fact in of.log:
        # Without samples it is no batch: others waited for one who has none left in the epoch.
        if fact["kind"] == "commit" and fact["samples"]:
            whose[fact["ticket"]] = fact["worker"], fact["batch"]
        elif fact["kind"] == "apply":
            for part in fact["parts"]:
                batch = whose.get(part["ticket"])
                if batch is not None:
                    applied.append(batch)
                    added[element(of, batch)] += LR * fact["lr_scale"] * part["weight"]
    return added, list(whose.values()), applied


def not_again(of: Killed, worker: str) -> set[Batch]:
    """Batches of which that worker said that they do not count: so many, and the one that was under way."""
    said = of.said(worker)
    found = [(0, int(batch)) for batch in UNDER_WAY.findall(said)]
    found += [(int(count), int(first)) for count, first in NOT_AGAIN.findall(said)]
    return {(worker, first + n) for count, first in found for n in range(count + 1)}


@promise("Every batch counts once in the final weights, whichever process is killed.")
@pytest.mark.parametrize(
    ("loop", "policy"),
    usually([("train", "sync"), pytest.param("fit", "sync", marks=pytest.mark.nightly)], CASES),
)
def test_every_batch_counts_once_whoever_is_killed(
    tmp_path: Path, loop: str, policy: str, record_property: Any
) -> None:
    of = killed(tmp_path / "out", loop, policy)
    record_property("kills", of.kills)
    print(f"{loop} {policy}: {of.kills} kills")
    added, commits, applied = promised(of)
    assert len(set(applied)) == len(applied)
    (job,) = entries_of(of.run, "job")
    if job.get("local") is not None:
        # A commit is of several batches.
        assert len(set(commits)) == len(commits)
        return
    assert len(set(commits)) == len(commits)
    missing = {(worker, batch) for worker in of.workers for batch in range(BATCHES)} - set(commits)
    if loop == "fit":
        told = of.run.summary.missing.get("batches", {})
        if policy not in DROPPING:
            assert {worker for worker, _ in missing} == set(told) and sum(told.values()) == len(missing)
        missing -= set().union(*(not_again(of, worker) for worker in of.workers))
    assert not missing or policy in DROPPING, sorted(missing)
    dropped = {entry["ticket"] for entry in entries_of(of.run, "drop")}
    assert len(applied) == len(commits) - len(dropped)
    assert not dropped or policy in DROPPING, f"{len(dropped)} batches were dropped"
    if job.get("tensors") is None:
        assert np.abs(counted(of) - added[: len(counted(of))]).max() < 1e-5
        assert np.count_nonzero(counted(of)) == len({element(of, batch) for batch in applied})
