"""Verbs for jobs with replicas that `ps-lab run` starts."""

from pathlib import Path

from pslab.check.checker import check_run
from pslab.launch.status_client import StatusClient, StatusError
from pslab.runs.folder import Run
from pswire.v1 import coordinator_pb2 as pb
from tests.cluster.cluster import entries_of

BATCHES = 40
GATES = 10, 20, 30
EXPERIMENT = f"""
[cluster]
workers = 2
worker_timeout = 60.0
[policy]
name = "sync"
[optimizer]
name = "adam"
learning_rate = 0.05
[job]
script = "tests/cluster/numpy_worker.py"
arguments = ["--batches", "{BATCHES}", GATES]
"""


def status(out: Path) -> pb.StatusReply | None:
    """What the server says that leads, if one does."""
    try:
        client = StatusClient((out / "address").read_text().split()[0])
    except OSError:
        return None
    try:
        return client.ask()
    except StatusError:
        return None
    finally:
        client.close()


def whole(out: Path, version: int) -> bool:
    """Whether the job is at that version or beyond, with both copies in sync and the third server there."""
    found = status(out)
    states = {"leads", "in sync", "votes"}
    return found is not None and found.version >= version and {s.state for s in found.servers} == states


def sha256(folder: Path) -> str:
    found = Run(folder / "run")
    verdict = check_run(found)
    assert verdict.ok, [str(violation) for violation in verdict.violations]
    commits = [(entry["worker"], entry["batch"]) for entry in entries_of(found, "commit") if entry["samples"]]
    assert sorted(commits) == [(f"w{rank}", batch) for rank in range(2) for batch in range(BATCHES)]
    assert found.summary.success and found.summary.weights_sha256
    return found.summary.weights_sha256
