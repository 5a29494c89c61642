"""``ps-lab export`` of a version that a checkpoint has, without computing anything."""

from pathlib import Path

import pytest

from pslab import export as exporting
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
