"""Event files of a run that a recovery takes back while it is followed: a reader has what the log says at the end."""

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorboardX")

from pslab.observe import tensorboard
from pslab.observe.tensorboard import write_events
from pslab.runs.folder import Run
from psserver.checkpoint import Store
from tests.checkpoint.test_simulated import EVERY, cut_off, play
from tests.observe.test_points import points

SECTIONS: dict[str, Any] = {"simulation": {"evaluate": 3}, "run": {**EVERY, "versions": 24}}


def shown(folder: Path) -> list[tuple[int, float]]:
    """Steps and losses that are left of the folder's only event file, as TensorBoard reads it."""
    tensorflow = pytest.importorskip("tensorflow")
    (file,) = folder.glob("events.out.tfevents.*")
    found: list[tuple[int, float]] = []
    for record in tensorflow.data.TFRecordDataset([str(file)]).as_numpy_iterator():
        event = tensorflow.compat.v1.Event.FromString(record)
        if event.session_log.status == event.session_log.START:
            found = [row for row in found if row[0] < event.step]
        found += [(event.step, each.simple_value) for each in event.summary.value if each.tag == "loss"]
    return found


@pytest.mark.tensorflow
@pytest.mark.parametrize("other", [False, True])
def test_points_are_those_of_the_log_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    """Of a run that goes on from a checkpoint, or of another run that is begun in its folder."""
    folder = cut_off(play(tmp_path / "whole", "async", **SECTIONS), tmp_path / "run", 0.9)

    def goes_on(_: float) -> None:
        if not other:
            play(folder, "async", Store(folder / "checkpoints").names()[1], **SECTIONS)
            return
        made = play(tmp_path / "other", "sync", **SECTIONS)
        for name in ("decisions.jsonl", "metrics.jsonl", "summary.json"):
            shutil.copy(made.path / name, folder / name)

    monkeypatch.setattr(tensorboard.time, "sleep", goes_on)
    write_events(folder, tmp_path / "events", follow=True)
    expected = [(point.version, pytest.approx(point.metrics["loss"])) for point in points(Run(folder))]
    assert shown(tmp_path / "events") == expected
