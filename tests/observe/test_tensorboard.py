"""Event files, read back by TensorFlow's own reader, which checks every record's sums."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("tensorboardX")

from pslab.cli import cli
from pslab.observe import tensorboard
from pslab.observe.tensorboard import HISTOGRAM_EVERY, write_events
from tests.observe.test_points import points
from tests.replay.simulated import simulate

MANY = {"evaluate": 50, "problem": "logistic", "compute": "exponential(1)"}
LONG = {"module": "none:here", "epochs": 5}


def read_back(folder: Path) -> dict[str, list[tuple[int, float, Any]]]:
    """Tag -> (step, wall time, number or histogram), of the folder's only event file."""
    tensorflow = pytest.importorskip("tensorflow")
    (file,) = folder.glob("events.out.tfevents.*")
    found: dict[str, list[tuple[int, float, Any]]] = defaultdict(list)
    first, *events = tensorflow.data.TFRecordDataset([str(file)]).as_numpy_iterator()
    assert tensorflow.compat.v1.Event.FromString(first).file_version == "brain.Event:2"
    for record in events:
        event = tensorflow.compat.v1.Event.FromString(record)
        for value in event.summary.value:
            content = value.histo if value.HasField("histo") else value.simple_value
            found[value.tag].append((event.step, event.wall_time, content))
    return dict(found)


@pytest.mark.tensorflow
def test_event_files_have_the_numbers_of_the_run(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation=MANY, job=LONG)
    done = CliRunner().invoke(cli, ["export", str(run.path), "--tensorboard", str(run.path / "tensorboard")])
    assert done.exit_code == 0, done.output
    found = read_back(run.path / "tensorboard")
    assert set(found) - {"evaluation/gap"} == {
        "loss", "staleness/mean", "staleness/max", "samples_per_second", "accepted_share",
        "evaluation/accuracy", "evaluation/loss", "staleness",
    }  # fmt: skip
    train = [m for m in run.metrics() if m.kind == "train"]
    assert [(step, loss) for step, _, loss in found["loss"]] == [
        (m.version, pytest.approx(m.loss, rel=1e-6)) for m in train
    ]
    began = (run.path / "experiment.toml").stat().st_mtime
    assert [wall for _, wall, _ in found["loss"]] == pytest.approx([began + m.t for m in train])
    evaluations = [m for m in run.metrics() if m.kind == "eval"]
    assert [(step, value) for step, _, value in found["evaluation/accuracy"]] == [
        (m.version, pytest.approx(m.metrics["accuracy"], rel=1e-6)) for m in evaluations
    ]
    assert [m for _, _, m in found["staleness/max"]] == [max(p.staleness) for p in points(run)]
    histograms = [content for _, _, content in found["staleness"]]
    assert len(histograms) == -(-run.summary.versions // HISTOGRAM_EVERY)
    assert sum(h.num for h in histograms) == sum(sum(h.bucket) for h in histograms)
    counts = defaultdict[int, float](float)
    for histogram in histograms:
        for limit, count in zip(histogram.bucket_limit, histogram.bucket, strict=True):
            counts[int(limit)] += count
    assert {age: count for age, count in counts.items() if count} == run.summary.histogram


def test_again_and_again(tmp_path: Path) -> None:
    run, out = simulate(tmp_path / "run", "async", simulation=MANY), tmp_path / "events"
    for more in ([], [], ["--follow"]):
        done = CliRunner().invoke(cli, ["export", str(run.path), "--tensorboard", str(out), *more])
        assert done.exit_code == 0, done.output
        assert len(list(out.glob("events.out.tfevents.*"))) == 1
    assert f"tensorboard --logdir {out}" in done.stdout


@pytest.mark.tensorflow
def test_a_run_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulate(tmp_path / "run", "async", simulation=MANY, job=LONG)
    assert write_events(run.path, tmp_path / "once") > 0
    summary, log = run.path / "summary.json", run.log.read_text(encoding="utf-8")
    ended = summary.read_text(encoding="utf-8")
    summary.unlink()
    run.log.write_text(log[: len(log) // 2], encoding="utf-8")

    def goes_on(_: float) -> None:
        run.log.write_text(log, encoding="utf-8")
        summary.write_text(ended, encoding="utf-8")

    monkeypatch.setattr(tensorboard.time, "sleep", goes_on)
    write_events(run.path, tmp_path / "followed", follow=True)
    assert str(read_back(tmp_path / "followed")["loss"]) == str(read_back(tmp_path / "once")["loss"])


def test_a_run_without_a_log_is_refused(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation=MANY | {"record": False})
    done = CliRunner().invoke(cli, ["export", str(run.path), "--tensorboard", str(run.path / "tensorboard")])
    assert done.exit_code != 0 and "run folder with decisions.jsonl" in done.stderr
