"""The ps-worker command's own work, in this process, on a server in this process: TensorFlow is loaded once."""

from pathlib import Path

import keras
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from pswire.addresses import parse_hosts
from pswire.config.experiment import parse_experiment
from pswire.exits import ExitCode
from psworker.cli import Place, Reporter, main, run
from psworker.tensorflow import named_variables
from tests.service.serving import serving

pytestmark = [
    pytest.mark.tensorflow,
    # Between Keras and numpy, when a model is saved.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

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


def work(
    folder: Path, hosts: str, *, optimizer: str | None = None, save: Path | None = None, **options: object
) -> ExitCode:
    file = folder / "job_of_a_test.py"
    file.write_text(JOB.format(optimizer=optimizer))
    document = {"job": {"module": f"{file}:Plain", "options": options}}
    place = Place(parse_hosts(hosts), None)
    return run(parse_experiment(document), place, None, "cpu", 10.0, Reporter(as_json=False), save)


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


def test_a_worker_writes_the_trained_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what it wrote has the weights that the server kept."""
    model = tmp_path / "model.keras"
    with serving(overrides=["optimizer={name='sgd', learning_rate=0.1}"], out=tmp_path / "run") as cluster:
        assert work(tmp_path, cluster.hosts, save=model) == ExitCode.OK
    assert f"the model of the last version is in {model}" in capsys.readouterr().out
    kept = load_file(tmp_path / "run" / "weights.safetensors")
    loaded = keras.models.load_model(model)
    assert set(kept) == {"dense/kernel", "dense/bias"}
    for name, variable in named_variables(loaded).items():
        np.testing.assert_array_equal(kept[name], variable.numpy())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("there.keras", "is there already"),
        ("model.h5", "ends in .keras"),
        ("none/model.keras", "no folder that can be written to"),
    ],
)
def test_a_place_for_the_model_that_is_none_is_refused_at_once(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "there.keras").touch()
    said = CliRunner().invoke(main, ["--ps-hosts", "x:1", "--job", "a:b", "--save", str(tmp_path / name)])
    assert said.exit_code == ExitCode.USAGE and words in said.output
