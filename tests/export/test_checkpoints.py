"""``ps-lab export`` of a checkpoint: its version, without computing anything."""

import shutil
from pathlib import Path

import pytest

from psserver.checkpoint import Store
from tests.export.test_export import arrays_of
from tests.replay.command import ps_lab
from tests.replay.simulated import simulate

RUN = {"checkpoint_every": "3v", "keep": 99, "seed": 3, "name": "test"}


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
        (("--version", 3), "a checkpoint has one version"),
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
