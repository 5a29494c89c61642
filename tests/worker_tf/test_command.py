"""The ps-worker command's own work, in this process, on a server in this process: TensorFlow is loaded once."""

from pathlib import Path

import pytest

from pswire.addresses import parse_hosts
from pswire.config.experiment import parse_experiment
from pswire.exits import ExitCode
from psworker.cli import Place, Reporter, run
from tests.service.serving import serving

pytestmark = pytest.mark.tensorflow

JOB = """
import keras
import numpy as np
from psworker import Job

class Plain(Job):
    batches: int = 4
    optimizer = {optimizer!r}
    loss = "mse"

    def model(self):
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    def dataset(self, worker_index, worker_count, seed):
        return [(np.ones((3, 2), "f"), np.ones((3, 1), "f"))] * self.batches
"""


def work(folder: Path, hosts: str, *, optimizer: str | None = None, **options: object) -> ExitCode:
    file = folder / "job_of_a_test.py"
    file.write_text(JOB.format(optimizer=optimizer))
    document = {"job": {"module": f"{file}:Plain", "options": options}}
    place = Place(parse_hosts(hosts), None)
    return run(parse_experiment(document), place, None, "cpu", 10.0, Reporter(as_json=False))


def test_an_empty_dataset_names_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as cluster, pytest.raises(SystemExit) as ended:
        work(tmp_path, cluster.hosts, batches=0)
    assert ended.value.code == ExitCode.JOB_FAILED
    said = capsys.readouterr().err
    assert "nothing was trained" in said and "Plain had no batch for this worker" in said


def test_another_optimizer_than_the_servers_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the servers' own, or from-job, is not."""
    with serving(overrides=["optimizer={name='sgd', learning_rate=0.01}"]) as cluster:
        with pytest.raises(SystemExit) as ended:
            work(tmp_path, cluster.hosts, optimizer="adam")
        assert ended.value.code == ExitCode.REFUSED
        assert "this server runs sgd with learning_rate = 0.01" in capsys.readouterr().err
        assert work(tmp_path, cluster.hosts, optimizer="sgd") == ExitCode.OK
    with serving(overrides=["optimizer={name='from-job'}"]) as cluster:
        assert work(tmp_path, cluster.hosts, optimizer="adam") == ExitCode.OK
        assert cluster.status().optimizer == "adam"
