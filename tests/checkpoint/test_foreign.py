"""Checkpoints of another run in a run's folder: nobody goes on from them, and the refusal says whose they are not."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from psserver.checkpoint import Store
from psserver.checkpoint.rewind import LogIndex
from tests.checkpoint.test_simulated import EVERY, cut_off, play
from tests.cluster.cluster import PATIENCE, ROOT
from tests.replay.command import Said, ps_lab

Resume = Callable[[Path, str], Said]


def by_ps_lab(folder: Path, which: str) -> Said:
    options = ("--engine", "simulated", "--out", folder, "--resume", which)
    return ps_lab("run", folder / "experiment.toml", *options)


def by_ps_server(folder: Path, which: str) -> Said:
    """It ends before it serves."""
    hosts = ("--ps-hosts", "127.0.0.1:0,127.0.0.1:0", "--task-index", "0")
    options = ("--out", folder, "--config", folder / "experiment.toml", "--resume", which)
    command = [sys.executable, "-m", "psserver", *hosts, *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


RESUMES = {"ps-lab": by_ps_lab, "ps-server": by_ps_server}


def with_another(tmp_path: Path) -> tuple[Path, str]:
    """A run that was cut off, into which the newest checkpoint of another run of the same experiment was copied; its
    name."""
    folder = cut_off(play(tmp_path / "whole", "async"), tmp_path / "again", 0.6)
    own = Store(folder / "checkpoints")
    other = Store(play(tmp_path / "other", "async", run={**EVERY, "seed": 4}).path / "checkpoints")
    foreign = other.names()[-1]
    shutil.copytree(other.root / foreign, own.root / foreign)
    assert own.names()[-1] == foreign, "the newest in the folder, and whole"
    own.verify(foreign)
    return folder, foreign


def sentence(folder: Path, name: str) -> str:
    about = Store(folder / "checkpoints").manifest(name)
    found = LogIndex(folder).lacks(about.entry, about.job, about.version)
    assert found is not None
    assert found == (
        f"is none of this log, which has no checkpoint of version {about.version} of job {about.job} at entry "
        f"{about.entry}: it was rolled back, or is of another run"
    )
    return found


@pytest.mark.parametrize("resume", RESUMES.values(), ids=RESUMES)
def test_alone_it_is_refused_and_by_its_name_too(tmp_path: Path, resume: Resume) -> None:
    """Exit code 2, and the folder is as it was."""
    folder, foreign = with_another(tmp_path)
    why = sentence(folder, foreign)
    before = {path: path.read_bytes() for path in (*folder.glob("*.jsonl"), folder / "experiment.toml")}
    named = resume(folder, foreign)
    assert named.code == 2 and f"{foreign}: {why}" in named.err, named
    for name in Store(folder / "checkpoints").names():
        if name != foreign:
            shutil.rmtree(folder / "checkpoints" / name)
    alone = resume(folder, "latest")
    assert alone.code == 2 and "there is no checkpoint to go on from" in alone.err, alone
    assert f"{foreign}: {why}" in alone.err
    assert {path: path.read_bytes() for path in before} == before
    assert (folder / "checkpoints" / foreign / "manifest.json").is_file()
