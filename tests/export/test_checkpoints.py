"""``ps-lab export`` of a checkpoint: its version, without computing anything."""

import shutil
from pathlib import Path

import pytest

from pslab import export as exporting
from pslab.commands import export as command
from pslab.export import Weights
from psserver.checkpoint import Store
from tests.checkpoint.written import write
from tests.export.test_export import arrays_of
from tests.replay.command import ps_lab
from tests.replay.simulated import simulate

RUN = {"checkpoint_every": "3 versions", "keep": 99, "seed": 3, "name": "test"}


def test_its_weights_are_those_of_its_version(tmp_path: Path) -> None:
    """As executing the log again gives them, from one server as from three."""
    for servers in (1, 3):
        run = simulate(tmp_path / f"run{servers}", "async", run=RUN, cluster={"servers": servers})
        store = Store(run.path / "checkpoints")
        for number, name in enumerate((store.names()[1], store.names()[-1])):
            path = tmp_path / f"{servers}-{number}.safetensors"
            done = ps_lab("export", store.root / name, "--to", path)
            version = store.manifest(name).version
            assert done.code == 0 and f"version {version}, read from checkpoint {name}" in done.out, done
            other = tmp_path / f"{servers}-{number}-again.npz"
            assert ps_lab("export", run.path, "--version", version, "--to", other).code == 0
            found, expected = arrays_of(path), arrays_of(other)
            assert found.keys() == expected.keys()
            assert all(found[each].tobytes() == expected[each].tobytes() for each in expected)
            assert {each: found[each].shape for each in found} == {
                each: expected[each].shape for each in found
            }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--version", 3), "which has a single version"),
        ((), "the file was damaged or edited"),
        (("--to", "model.keras"), "lies in no run folder"),
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path: Path, options: tuple[object, ...], words: str) -> None:
    run = simulate(tmp_path / "run", "async", run=RUN)
    store = Store(run.path / "checkpoints")
    moved = tmp_path / "elsewhere" / store.names()[-1]
    shutil.copytree(store.root / store.names()[-1], moved)
    file = moved / "server-0.safetensors"
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole)
    target = tmp_path / "w.npz"
    done = ps_lab(
        "export", moved, "--to", target, *(tmp_path / o if o == "model.keras" else o for o in options)
    )
    assert done.code == 2 and words in done.err, done
    assert not target.exists() and not (tmp_path / "model.keras").exists()


def test_of_half_a_checkpoint_it_is_said_what_it_is_and_which_one_is_complete(tmp_path: Path) -> None:
    """Also where it is alone, and where its folder has another name than a run gives it."""
    for place in ("checkpoints", "kept"):
        store = Store(tmp_path / place)
        first, half, last = (write(store, entry) for entry in (10, 20, 30))
        (store.root / half / "coordinator.json").touch()
        (store.root / half / "manifest.json").unlink()
        for complete in (first, last, None):
            done = ps_lab("export", store.root / half, "--to", tmp_path / "w.npz")
            expected = f"; {complete} is complete" if complete else f"; none in {store.root} is complete"
            assert done.code == 2 and "without manifest.json" in done.err, done
            assert done.err.strip().endswith(expected), done
            if complete:
                (store.root / complete / "manifest.json").unlink()
    assert not (tmp_path / "w.npz").exists()


@pytest.mark.parametrize("step", ["before", "model", "reading"])
def test_one_that_a_run_removes_meanwhile_is_said_or_exported_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before the command looks; while it makes the model; and between two files of it."""
    run = simulate(tmp_path / "run", "async", run=RUN, cluster={"servers": 3})
    store, target = Store(run.path / "checkpoints"), tmp_path / "w.npz"
    name, *_, newest = store.names()

    def removed() -> None:
        assert name in store.prune(1)

    def after_removal(  # type: ignore[no-untyped-def]
        folder: Path, real=exporting.weights_of_checkpoint, **how: bool
    ) -> Weights:
        removed()
        return real(folder, **how)

    def arrays(self: Store, other: str, file: str, *rest: object, real=Store.arrays) -> object:  # type: ignore[no-untyped-def]
        found = real(self, other, file, *rest)
        if file == "server-1.safetensors":
            removed()
        return found

    assert command.is_checkpoint(store.root / name)
    if step == "before":
        removed()
    elif step == "model":
        monkeypatch.setattr(exporting, "weights_of_checkpoint", after_removal)
    else:
        monkeypatch.setattr(Store, "arrays", arrays)
    done = ps_lab("export", store.root / name, "--to", target)
    assert done.code == 2 and f"{name}: does not exist" in done.err, done
    assert done.err.strip().endswith("is complete") and not target.exists()
    monkeypatch.undo()
    assert ps_lab("export", store.root / newest, "--to", target).code == 0
