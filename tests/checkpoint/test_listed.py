"""`ps-lab checkpoints` says of each what `--resume` would do with it, and `--resume` does so."""

import shutil
from pathlib import Path

import pytest

from pslab.runs.folder import Run
from psserver.checkpoint import Store
from psserver.decisions import entries as e
from tests.checkpoint.test_simulated import EVERY, cut_off, play
from tests.replay.command import Said, ps_lab


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return play(tmp_path_factory.mktemp("run") / "whole", "async")


@pytest.fixture
def folder(whole: Run, tmp_path: Path) -> Path:
    """A run that was killed."""
    return cut_off(whole, tmp_path / "run", 0.7)


def fates(folder: Path, code: int = 0) -> dict[str, tuple[str, str | None]]:
    listed = ps_lab("checkpoints", folder, "--json")
    assert listed.code == code, listed
    return {line["checkpoint"]: (line["fate"], line["resume"]) for line in listed.lines}


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def resume(folder: Path, which: str) -> Said:
    said = ps_lab(
        "run", folder / "experiment.toml", "--engine", "simulated", "--out", folder, "--resume", which
    )
    return said


def test_the_newest_is_taken_and_older_ones_by_their_names(folder: Path) -> None:
    *older, newest = Store(folder / "checkpoints").names()
    expected = {name: ("named", name) for name in older} | {newest: ("latest", "latest")}
    assert len(older) > 0 and fates(folder) == expected
    # The folder of them lies in the run, too.
    assert fates(folder / "checkpoints") == expected
    said = ps_lab("checkpoints", folder).out
    assert "--resume latest resumes from it" in said and f"--resume {older[0]} resumes from it" in said
    assert resume(folder, older[0]).code == 0
    # Those behind it are void now, and what was taken since is the newest.
    later = fates(folder)
    assert later[older[0]] == ("named", older[0])
    assert all(later.get(name, ("void", None)) == ("void", None) for name in (*older[1:], newest))
    assert list(later.values())[-1] == ("latest", "latest")


def test_one_of_another_run_is_void_and_the_newest_of_its_own_is_taken(
    folder: Path, whole: Run, tmp_path: Path
) -> None:
    own = Store(folder / "checkpoints")
    taken = own.names()[-1]
    other = Store(play(tmp_path / "other", "async", run={**EVERY, "seed": 4}).path / "checkpoints")
    shutil.copytree(other.root / other.names()[-1], own.root / other.names()[-1])
    found = fates(folder)
    assert found[other.names()[-1]] == ("void", None) and found[taken] == ("latest", "latest")
    said = ps_lab("checkpoints", folder).out
    assert "is none of this log" in said
    version = own.manifest(taken).version
    assert f"passed over {other.names()[-1]}: is none of this log" in resume(folder, "latest").err
    restored = [entry.fact for entry in Run(folder).decisions() if isinstance(entry.fact, e.Restore)]
    assert [fact.version for fact in restored] == [version]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (("seed = 3", "seed = 5"), "whose seed is 3, this one's is 5"),
        (('name = "async"', 'name = "sync"'), "whose policy is"),
        (("workers = 4", "workers = 5"), "whose number of workers is"),
        (("learning_rate = 0.05", "learning_rate = 0.5"), "whose optimizer is"),
    ],
)
def test_what_the_runs_experiment_does_not_go_on_from_is_refused(
    folder: Path, changed: tuple[str, str], words: str
) -> None:
    experiment = folder / "experiment.toml"
    text = experiment.read_text()
    assert text.count(changed[0]) == 1
    experiment.write_text(text.replace(*changed))
    before = files(folder)
    said = resume(folder, "latest")
    assert files(folder) == before
    assert said.code == 2 and words in said.err


def test_a_damaged_newest_one_leaves_the_one_before_to_be_taken(folder: Path) -> None:
    *_, before, newest = Store(folder / "checkpoints").names()
    file = folder / "checkpoints" / newest / "server-0.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    found = fates(folder, code=9)
    assert (found[before], found[newest]) == (("latest", "latest"), ("damaged", None))


def test_without_a_log_nobody_goes_on_from_any(folder: Path, tmp_path: Path) -> None:
    (folder / "checkpoints").rename(tmp_path / "kept")
    assert set(fates(tmp_path / "kept").values()) == {("void", None)}
    (tmp_path / "kept").rename(folder / "checkpoints")
    (folder / "decisions.jsonl").unlink()
    assert set(fates(folder).values()) == {("void", None)}
    assert "there is no decisions.jsonl beside it" in ps_lab("checkpoints", folder).out


def test_those_of_later_jobs_of_the_run_are_listed_too(folder: Path) -> None:
    names = Store(folder / "checkpoints").names()
    shutil.copytree(folder, folder / "job-2")
    (folder / "job-3").mkdir()
    listed = [(line["folder"], line["checkpoint"]) for line in ps_lab("checkpoints", folder, "--json").lines]
    roots = [str(each / "checkpoints") for each in (folder, folder / "job-2")]
    assert listed == [(root, name) for root in roots for name in names]
    said = ps_lab("checkpoints", folder).out.splitlines()
    assert [line for line in said if line.endswith("checkpoints:")] == [f"{root}:" for root in roots]
