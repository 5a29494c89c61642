"""Several fits of one process: each trains, as in plain Keras, whatever was compiled or frozen between them."""

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.keras.in_process import servers
from tests.probes import embedded_server
from tests.service.serving import wait_until

pytestmark = [
    pytest.mark.usefixtures("jobs_end"),
    pytest.mark.tensorflow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

pk = pytest.importorskip("psworker.keras")
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from tests.keras.steps import compiled  # noqa: E402

X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 4, 64)
FIT: dict[str, Any] = {"x": X, "y": Y, "batch_size": 16, "verbose": 0}


def build(**more: Any) -> Any:
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    dense = keras.layers.Dense
    return compiled(keras.Sequential([keras.Input((8,)), dense(6, activation="relu"), dense(4)]), **more)


def thousand(truth: Any, output: Any) -> Any:
    return keras.ops.mean(output * 0 + 1000.0)


def fits(model: Any) -> list[Any]:
    """Twice; with a frozen layer and another optimizer; with all layers again; with another loss and metric, and the
    same optimizer. TensorFlow compiles none of them: that takes longest."""
    eager = {"run_eagerly": True}
    found = [model.fit(**FIT).history, model.fit(**FIT).history]
    model.layers[0].trainable = False
    found.append(compiled(model, keras.optimizers.SGD(0.1), **eager).fit(**FIT).history)
    model.layers[0].trainable = True
    found.append(compiled(model, keras.optimizers.Adam(0.01), **eager).fit(**FIT).history)
    top = keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")
    found.append(compiled(model, model.optimizer, loss=thousand, metrics=[top], **eager).fit(**FIT).history)
    return found


@pytest.mark.cluster
def test_every_fit_of_a_script_is_that_of_plain_keras(tmp_path: Path) -> None:
    plain = build(run_eagerly=True)
    keras.utils.set_random_seed(9)
    expected = fits(plain)
    ours = build(run_eagerly=True)
    with pk.distribute(ours, out=tmp_path / "run"):
        keras.utils.set_random_seed(9)
        assert fits(ours) == expected
    for one, other in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    jobs = [tmp_path / "run", tmp_path / "run" / "job-2", tmp_path / "run" / "job-3"]
    summaries = [json.loads((job / "summary.json").read_text()) for job in jobs]
    assert [summary["versions"] for summary in summaries] == [8, 4, 8]
    assert all(summary["success"] for summary in summaries)


def test_on_a_cluster_a_second_fit_is_another_phase_of_the_job(tmp_path: Path) -> None:
    plain, ours = build(run_eagerly=True), build(run_eagerly=True)
    for _ in range(2):
        plain.fit(**FIT, shuffle=False)
    with servers(2, out=tmp_path / "run") as hosts, pk.distribute(ours, hosts) as job:
        ours.fit(**FIT, shuffle=False)
        with pytest.raises(pk.FitError, match="this batch would not count"):
            ours.train_on_batch(X[:16], Y[:16])
        ours.fit(**FIT, shuffle=False)
        assert job.version == 8 and int(ours.optimizer.iterations) == 8 and job.fates == {"applied": 8}
    for one, other in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    log = (tmp_path / "run" / "decisions.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["kind"] == "start" for line in log) == 2


@pytest.mark.cluster
def test_a_server_of_its_own_ends_with_its_model() -> None:
    """As in K folds, where each has a model of its own."""
    model = build(run_eagerly=True)
    job = pk.distribute(model)
    model.fit(**FIT)
    server = embedded_server(job)
    assert server.code is None
    del model, job
    keras.utils.clear_session()
    gc.collect()
    wait_until(lambda: server.code is not None, "the server to end")


class Unbuilt(keras.Model):  # type: ignore[misc]
    """Its `build` makes no variables, and says that it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(4)

    def build(self, shape: Any) -> None:
        self.built = True

    def call(self, x: Any) -> Any:
        return self.dense(x)
