"""Real servers that are killed and go on: from their checkpoints, on other addresses, and in other numbers."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, entries_of
from tests.cluster.saved import saved

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BATCHES = 40
SYNC = ("--workers", "2", "--policy", "sync", "--optimizer", "adam", "--learning-rate", "0.05")


def start(
    cluster: Cluster, servers: int, *flags: str, batches: int = BATCHES, workers: tuple[str, ...] = ()
) -> None:
    """Servers that share the run folder, and two workers with those options."""
    cluster.start_servers(
        servers, *SYNC, "--checkpoint-every", "5 versions", *flags, every=("--out", str(cluster.out))
    )
    for index in range(2):
        cluster.start_worker("--batches", str(batches), "--task-index", str(index), *workers)


@contextmanager
def processes(tmp_path: Path, name: str) -> Iterator[Cluster]:
    """Of one life of the run in tmp_path/run; they are killed in the end."""
    (tmp_path / name).mkdir()
    with Cluster(tmp_path / name) as started:
        started.out = tmp_path / "run"
        yield started


def test_killed_servers_go_on_with_the_same_bits_on_other_numbers_of_servers(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    with Cluster(tmp_path / "whole") as other:
        start(other, 2)
        whole = other.wait_end(worker_codes=[0, 0])
    # They wait behind two checkpoints: no life of the run ends by itself before it is killed.
    waits = ("--gate", "12", str(tmp_path / "never"))
    with processes(tmp_path, "first") as cluster:
        start(cluster, 2, workers=waits)
        cluster.wait_for(lambda _: len(saved(cluster)) >= 2, "two checkpoints are complete")
    with processes(tmp_path, "second") as cluster:
        before = max(saved(cluster))
        start(cluster, 3, "--resume", "latest", workers=waits)
        cluster.wait_for(lambda _: max(saved(cluster)) > before, "one more is complete")
    with processes(tmp_path, "third") as cluster:
        start(cluster, 1, "--resume", "latest")
        run = cluster.wait_end(worker_codes=[0, 0])
    assert run.summary.weights_sha256 == whole.summary.weights_sha256
    assert run.summary.versions == whole.summary.versions
    commits = Counter((entry["worker"], entry["batch"]) for entry in entries_of(run, "commit"))
    assert set(commits.values()) == {1} and len(commits) == 2 * BATCHES
    assert len(entries_of(run, "restore")) == 2


def test_a_folder_that_takes_no_checkpoint_ends_no_training(cluster: Cluster) -> None:
    """Server 1 has no folder."""
    cluster.start_servers(2, *SYNC, "--checkpoint-every", "5 versions")
    for index in range(2):
        cluster.start_worker("--batches", str(BATCHES), "--task-index", str(index))
    run = cluster.wait_end(worker_codes=[0, 0])
    assert run.summary.success
    assert "is NOT saved: server 1 has no folder for checkpoints" in cluster.servers[0].errors
    assert saved(cluster) == []
