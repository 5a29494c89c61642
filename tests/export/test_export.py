"""``ps-lab export``: any version of a run in files that others read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from pslab import export
from pslab.runs.folder import Run
from psserver import weights_file
from pswire.exits import ExitCode
from tests.lab.test_cut_off import killed
from tests.replay.command import Said, ps_lab
from tests.replay.simulated import Record, edit_log, simulate


def exported(run: Run, path: Path, *options: object) -> Said:
    return ps_lab("export", run.path, "--to", path, *options)


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".safetensors":
        return dict(load_file(path))
    with np.load(path, allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors"])
def test_the_last_version_is_the_runs(tmp_path: Path, name: str) -> None:
    run = simulate(tmp_path / "run", "async")
    path = tmp_path / "new" / name
    done = exported(run, path)
    assert done.code == 0 and "read from weights.safetensors" in done.out
    saved = weights_file.load(run.path / "weights.safetensors").arrays
    found = arrays_of(path)
    assert found.keys() == saved.keys()
    assert all(found[each].tobytes() == saved[each].tobytes() for each in saved)
    assert sorted(each.name for each in path.parent.iterdir()) == [name]


def test_a_folder_that_names_no_job_wants_one_named(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    (run.path / "experiment.toml").unlink()
    done = exported(run, tmp_path / "m.keras")
    assert done.code == 2 and "experiment.toml: is missing" in done.err and "by --job FILE:CLASS" in done.err
    assert not (tmp_path / "m.keras").exists()


def test_a_job_without_a_model_to_write_is_refused(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    done = exported(run, tmp_path / "w.npz", "--job", "my_job.py:MyJob")
    assert done.code == 2 and "--job my_job.py:MyJob: expected --to a .keras file or a SavedModel" in done.err
    assert not (tmp_path / "w.npz").exists()


def test_any_version_is_computed_again(tmp_path: Path) -> None:
    """To the last bit: the run without the versions after it."""
    run = simulate(tmp_path / "run", "async", optimizer={"name": "adam", "learning_rate": 0.01})
    done = exported(run, tmp_path / "w.npz", "--version", 9, "--json")
    (said,) = done.lines
    assert (said["version"], said["origin"]) == (9, "computed again from the decision log")
    short = simulate(
        tmp_path / "short",
        "async",
        optimizer={"name": "adam", "learning_rate": 0.01},
        run={"versions": 9},
    )
    other = weights_file.load(short.path / "weights.safetensors").arrays
    found = arrays_of(tmp_path / "w.npz")
    assert {name: values.tobytes() for name, values in found.items()} == {
        name: values.tobytes() for name, values in other.items()
    }


def test_a_killed_run_is_exported_as_far_as_its_log_goes(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    folder = killed(run.path, run.log.stat().st_size // 2, tmp_path / "killed")
    reached = Run(folder).summary.versions
    done = exported(Run(folder), tmp_path / "w.npz")
    assert (
        done.code == 0 and f"version {reached}, computed again" in done.out and "has no summary" in done.err
    )
    assert exported(run, tmp_path / "whole.npz", "--version", reached).code == 0
    assert (tmp_path / "w.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_what_cannot_be_exported_is_refused_in_a_sentence_and_nothing_is_left(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    taken = tmp_path / "taken.npz"
    taken.write_text("mine")
    out = tmp_path / "out"
    for path, options, words in (
        (out / "w.h5", (), "expected a name that ends in .keras, .safetensors or .npz"),
        (taken, (), "exists; nothing is overwritten"),
        (out / "w.npz", ("--version", 4000), "has no version 4000; its last one is"),
        (out / "w.keras", (), "names no [job]"),
        (taken / "w.npz", (), "cannot be written"),
    ):
        done = exported(run, path, *options)
        assert done.code == ExitCode.USAGE and words in done.err, done
    assert taken.read_text() == "mine"
    assert not list(out.iterdir()) if out.exists() else True


def test_weights_that_were_edited_are_refused(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    path = run.path / "weights.safetensors"
    arrays = {name: values + 1 for name, values in weights_file.load(path).arrays.items()}
    weights_file.save(path, arrays)
    done = exported(run, tmp_path / "w.npz")
    assert done.code == ExitCode.USAGE and "it was edited" in done.err
    assert not (tmp_path / "w.npz").exists()


def test_a_log_that_comes_out_otherwise_is_no_source(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")

    def change(records: list[Record]) -> None:
        [record for record in records if record["kind"] == "apply"][2]["lr_scale"] = 0.5

    edit_log(run, change)
    done = exported(run, tmp_path / "w.npz", "--version", 12)
    assert done.code == ExitCode.VIOLATIONS and "would not be the run's weights" in done.err
    assert not (tmp_path / "w.npz").exists()


def test_a_disk_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulate(tmp_path / "run", "async")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export.np.lib.format, "write_array", full)
    done = exported(run, tmp_path / "out" / "w.npz")
    assert done.code == ExitCode.USAGE and "No space left on device" in done.err
    assert list((tmp_path / "out").iterdir()) == []


def test_a_variable_may_have_any_name(tmp_path: Path) -> None:
    weights = {name: np.float32([1, 2]) for name in ("file", "a/b", "a b#1", "ä")}
    export.write_weights(tmp_path / "w.npz", export.Weights(weights, 1, ""), None)
    assert {name: values.tolist() for name, values in arrays_of(tmp_path / "w.npz").items()} == {
        name: [1.0, 2.0] for name in weights
    }
    assert json.dumps(sorted(weights))
