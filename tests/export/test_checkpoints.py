"""``ps-lab export`` of a version that a checkpoint has, without computing anything."""

from pathlib import Path

import pytest

from pslab import export as exporting
from pslab.runs.folder import Run, RunError
from psserver.checkpoint import Store
from tests.export.test_export import arrays_of
from tests.replay.command import ps_lab
from tests.replay.simulated import simulate

RUN = {"checkpoint_every": "3 versions", "keep": 99, "seed": 3, "name": "test"}


@pytest.mark.parametrize("servers", [1, 3])
def test_its_weights_are_those_of_its_version(tmp_path: Path, servers: int) -> None:
    """As executing the log again gives them, where the checkpoint is damaged or is none of this log."""
    run = simulate(tmp_path / "run", "async", run=RUN, cluster={"servers": servers})
    store = Store(run.path / "checkpoints")
    name = store.names()[1]
    version = store.manifest(name).version
    path, again = tmp_path / "weights.safetensors", tmp_path / "again.npz"
    done = ps_lab("export", run.path, "--version", version, "--to", path)
    assert done.code == 0 and f"version {version}, read from checkpoint {name}" in done.out, done
    file = store.root / name / "server-0.safetensors"
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole)
    done = ps_lab("export", run.path, "--version", version, "--to", again)
    assert done.code == 0 and "computed again from the decision log" in done.out, done
    found, expected = arrays_of(path), arrays_of(again)
    assert found.keys() == expected.keys()
    assert all(found[each].tobytes() == expected[each].tobytes() for each in expected)
    assert {each: found[each].shape for each in found} == {each: expected[each].shape for each in found}


def test_a_copy_of_a_checkpoint_gives_its_weights(tmp_path: Path) -> None:
    """Without its run and a log; no model, and none that is damaged."""
    run = simulate(tmp_path / "run", "async", run=RUN, cluster={"servers": 2})
    name = Store(run.path / "checkpoints").names()[1]
    version = Store(run.path / "checkpoints").manifest(name).version
    alone, path, same = tmp_path / name, tmp_path / "w.npz", tmp_path / "same.npz"
    assert ps_lab("export", run.path, "--version", version, "--to", same).code == 0
    (run.path / "checkpoints" / name).rename(alone)
    done = ps_lab("export", alone, "--to", path)
    assert done.code == 0 and f"version {version}, read from checkpoint {name}" in done.out, done
    found, expected = arrays_of(path), arrays_of(same)
    assert {each: found[each].tobytes() for each in found} == {
        each: expected[each].tobytes() for each in expected
    }
    for options, words in (
        (("--to", tmp_path / "m.keras"), "only weights are written"),
        (("--to", tmp_path / "v.npz", "--version", 3), "which has a single version"),
    ):
        done = ps_lab("export", alone, *options)
        assert done.code == 2 and words in done.err, done
    (alone / "server-1.safetensors").unlink()
    done = ps_lab("export", alone, "--to", tmp_path / "d.npz")
    assert done.code == 2 and "server-1.safetensors" in done.err, done
    assert not (tmp_path / "d.npz").exists()


def test_one_of_the_last_version_has_the_runs_fingerprint(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", run={**RUN, "checkpoint_every": "1 versions"})
    last = run.summary.versions
    assert "checkpoint" in exporting.weights_of(run, last, optimizer=True).origin
    summary = run.path / "summary.json"
    text = summary.read_text()
    assert run.summary.weights_sha256 is not None
    summary.write_text(text.replace(run.summary.weights_sha256, "0" * 64))
    with pytest.raises(RunError, match="has the fingerprint"):
        exporting.weights_of(Run(run.path), last, optimizer=True)


def test_one_of_another_run_is_not_taken(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", run=RUN)
    other = simulate(tmp_path / "other", "async", run={**RUN, "name": "other"})
    (run.path / "checkpoints").rename(tmp_path / "own")
    (other.path / "checkpoints").rename(run.path / "checkpoints")
    version = Store(run.path / "checkpoints").manifest(Store(run.path / "checkpoints").names()[1]).version
    done = ps_lab("export", run.path, "--version", version, "--to", tmp_path / "w.npz")
    assert done.code == 0 and "computed again" in done.out, done


def test_one_that_a_run_removes_meanwhile_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two files of it."""
    run = simulate(tmp_path / "run", "async", run=RUN, cluster={"servers": 3})
    store = Store(run.path / "checkpoints")

    def arrays(self: Store, other: str, file: str, *rest: object, real=Store.arrays) -> object:  # type: ignore[no-untyped-def]
        found = real(self, other, file, *rest)
        if file == "server-1.safetensors":
            assert store.prune(1)
        return found

    monkeypatch.setattr(Store, "arrays", arrays)
    version = store.manifest(store.names()[0]).version
    found = exporting.weights_of(run, version)
    assert found.version == version and found.origin == "computed again from the decision log"
