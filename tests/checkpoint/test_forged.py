"""Checkpoints with digests made anew: nobody goes on from what does not fit or is not finite, and a resume that is
refused leaves every file as it was."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from psserver.checkpoint import Store
from tests.checkpoint.test_foreign import RESUMES, Resume
from tests.checkpoint.test_simulated import cut_off, play
from tests.replay.command import ps_lab

PART, FACTS, COORDINATOR = "server-0.safetensors", "server-0.json", "coordinator.json"


def forge(folder: Path, file: str, change: Callable[[dict[str, object]], object]) -> None:
    """Change what is in that file of the newest checkpoint, and make its manifest agree."""
    store = Store(folder / "checkpoints")
    name = store.names()[-1]
    about = store.manifest(name)
    if file.endswith(".json"):
        plain = json.loads((store.root / name / file).read_bytes())
        change(plain)
        facts = store.put_json(name, file, plain)
    else:
        arrays: dict[str, object] = dict(store.arrays(name, file, about.files[file]))
        change(arrays)
        facts = store.put_arrays(name, file, arrays)  # type: ignore[arg-type]
    store.complete(replace(about, files={**about.files, file: facts}))


def with_nan(arrays: dict[str, object]) -> None:
    for values in arrays.values():
        assert isinstance(values, np.ndarray)
        values.reshape(-1)[0] = np.nan


def without_slots(arrays: dict[str, object]) -> None:
    for name in [name for name in arrays if name.startswith("slot/")]:
        del arrays[name]


FORGERIES: dict[str, tuple[str, Callable[[dict[str, object]], object]]] = {
    "nan": (PART, with_nan),
    "slots": (PART, without_slots),
    "holds": (FACTS, lambda facts: facts.update(holds=[[999999, 1]])),
    "optimizer": (FACTS, lambda facts: facts.update(optimizer={"name": "sgd", "learning_rate": 3.0})),
    "tallies": (COORDINATOR, lambda state: state.update(tallies=[])),
    "policy": (COORDINATOR, lambda state: state.update(policy_state={"round": "many"})),
}


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("run")
    return cut_off(play(made / "whole", "sync", optimizer={"name": "momentum"}), made / "again", 0.6)


@pytest.mark.parametrize("forgery", FORGERIES)
def test_it_is_refused(cut: Path, tmp_path: Path, forgery: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(cut, folder)
    forge(folder, *FORGERIES[forgery])
    said = RESUMES["ps-lab"](folder, Store(folder / "checkpoints").names()[-1])
    assert said.code == 2, said


@pytest.mark.parametrize("resume", RESUMES.values(), ids=RESUMES)
def test_a_resume_that_is_refused_changes_no_file(cut: Path, tmp_path: Path, resume: Resume) -> None:
    """Not even the number of a generation, and who holds the lock."""
    folder = tmp_path / "run"
    shutil.copytree(cut, folder)
    forge(folder, *FORGERIES["slots"])
    (folder / "checkpoints" / "generation").write_text("1f0c 00\n")
    (folder / "checkpoints" / ".lock").write_text("12345\n")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    said = resume(folder, Store(folder / "checkpoints").names()[-1])
    assert said.code == 2, said
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_forged_name_gives_no_control_characters_to_the_terminal(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", "async").path
    store = Store(folder / "checkpoints")
    about = store.manifest(store.names()[-1])
    store.complete(replace(about, policy={**about.policy, "name": "\x1b[31m"}))
    said = ps_lab("checkpoints", folder)
    assert r", \x1b[31m, " in said.out and "\x1b" not in said.out + said.err
