"""The certificate of who looks at a run: there as long as the run goes on, and cleared when it was killed."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pslab.launch.security import (
    OPTIONS,
    Protection,
    RunSecurity,
    entry_of,
    observable,
    options_for,
    remove_stale,
)
from pswire.security.settings import SecurityOptions
from tests.engines.here import ROOT

KILLED = """
import os, sys
from pathlib import Path
from pslab.launch.security import observable
from pslab.launch.security import RunSecurity
with observable(Path(sys.argv[1]), RunSecurity("killed")):
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folder of a run whose process was killed."""
    run = tmp_path / "killed"
    done = subprocess.run([sys.executable, "-c", KILLED, str(run)], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL and len(list(entry_of(run).iterdir())) == 4
    return run


def kept() -> list[str]:
    """What is there now, by name; not the file by which processes take turns."""
    return sorted(path.name for path in entry_of(Path("any")).parent.iterdir() if path.is_dir())


@pytest.mark.cluster
def test_who_looks_clears_what_a_killed_run_left_and_nothing_else(tmp_path: Path, killed: Path) -> None:
    with observable(tmp_path / "live", RunSecurity("live")):
        place = entry_of(tmp_path / "live")
        assert options_for(killed) == SecurityOptions()
        assert kept() == [place.name]
        assert options_for(tmp_path / "live").tls_cert == str(place / "observer.pem")
    assert kept() == []


@pytest.mark.cluster
def test_the_next_run_clears_it_also_one_without_certificates(tmp_path: Path, killed: Path) -> None:
    with observable(tmp_path / "local", Protection()):
        assert kept() == []


@pytest.mark.cluster
def test_what_another_machine_wrote_is_its_own_affair(killed: Path) -> None:
    """Its locks may not be seen here."""
    options = entry_of(killed) / OPTIONS
    options.write_text(options.read_text().replace(socket.gethostname(), "another-machine"), encoding="utf-8")
    remove_stale()
    assert kept() == [entry_of(killed).name]


def test_a_second_run_in_a_folder_takes_nothing_from_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with observable(run, RunSecurity("first")):
        first = (entry_of(run) / "observer.pem").read_bytes()
        with observable(run, RunSecurity("second")):
            assert "no other ps-lab command can observe" in capsys.readouterr().err
        assert (entry_of(run) / "observer.pem").read_bytes() == first
    assert kept() == []
