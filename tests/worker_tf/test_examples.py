"""The examples are fit to be copied: they load as jobs, and they learn."""

import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pslab.experiment import Experiment
from pswire.model.plan import make_plan
from psworker.job import load_job
from psworker.keras.jobs.trainer import JobTrainer

pytestmark = pytest.mark.tensorflow
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def data(monkeypatch):
    """The module examples/digits_data.py."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import digits_data

    return digits_data


def trained_alone(target, options, epochs, rate):
    """(metrics before, after) plain gradient descent in this process, as one worker on two servers."""
    job = load_job(str(EXAMPLES / target), options)
    trainer = JobTrainer(job, device="cpu", seed=1, deterministic=False)
    plan = make_plan([spec for spec, _ in trainer.specs], 2)
    trainer.attach(plan)
    flats = plan.scatter([value for _, value in trainer.specs])
    before = trainer.evaluate(flats)
    for _, batch in trainer.batches(0, 1, 1, epochs):
        changes = trainer.step(flats, batch).flats
        for flat, change, shard in zip(flats, changes, plan.shards, strict=True):
            flat[: shard.trainable] -= np.float32(rate) * change[: shard.trainable]
            flat[shard.trainable :] += change[shard.trainable :]
    return before, trainer.evaluate(flats)


@pytest.mark.parametrize(
    ("target", "options", "epochs", "rate", "metric", "good"),
    [
        ("digits.py:Digits", {"hidden": 32}, 6, 0.3, "accuracy", lambda value: value > 0.9),
        pytest.param(
            *("digits_cnn.py:DigitsCNN", {}, 5, 0.5, "accuracy", lambda value: value > 0.85),
            marks=pytest.mark.nightly,
        ),
        ("linear.py:Linear", {"samples": 1024}, 3, 0.05, "mse", lambda value: value < 0.02),
    ],
)
def test_the_jobs_learn(target, options, epochs, rate, metric, good):
    before, after = trained_alone(target, options, epochs, rate)
    assert not good(before[metric])
    assert good(after[metric]), after


def test_the_digits_are_split_once_and_in_proportion(data):
    (train_x, train_y), (heldout_x, heldout_y) = data.digits("train"), data.digits("heldout")
    assert (len(train_x), len(heldout_x)) == (1437, 360)
    assert train_x.dtype == np.float32 and 0 <= train_x.min() < train_x.max() <= 1
    assert not {row.tobytes() for row in train_x} & {row.tobytes() for row in heldout_x}
    everywhere = Counter(np.concatenate([train_y, heldout_y]).tolist())
    for digit, count in Counter(heldout_y.tolist()).items():
        assert count == pytest.approx(everywhere[digit] * 360 / 1797, abs=1)


def test_batch_k_of_all_workers_is_batch_k_of_one(data):
    train = data.digits("train")
    whole = list(data.shuffled_batches(train, 0, 1, seed=4, batch_size=96)(7))
    parts = [list(data.shuffled_batches(train, worker, 3, seed=4, batch_size=32)(7)) for worker in range(3)]
    assert [len(part) for part in parts] == [15, 15, 15]
    for number, (images, _) in enumerate(whole):
        together = np.concatenate([part[number][0] for part in parts])
        assert sorted(row.tobytes() for row in together) == sorted(row.tobytes() for row in images)


def test_uneven_workers_have_uneven_data():
    job = load_job(str(EXAMPLES / "digits.py:Digits"), {"uneven": True})
    assert [len(list(job.dataset(worker, 3, 0)(0))) for worker in range(3)] == [15, 14, 13]


@pytest.mark.parametrize("policy", ["sync", "async", "bounded"])
def test_the_experiment_files_differ_in_the_policy_only(policy):
    text = (EXAMPLES / f"digits-{policy}.toml").read_text()
    reference = tomllib.loads((EXAMPLES / "digits-sync.toml").read_text())
    found = tomllib.loads(text)
    assert found["policy"]["name"] == policy
    for part in ("cluster", "optimizer", "job"):
        assert found[part] == reference[part]
    experiment = Experiment.load(EXAMPLES / f"digits-{policy}.toml")
    assert (experiment.cluster.servers, experiment.cluster.workers) == (2, 3)
