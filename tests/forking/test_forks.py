"""A command that is forked is to its tests what one that is executed is."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.forking import popen
from tests.forking.server import LIGHT

pytestmark = pytest.mark.cluster

SCRIPT = """
import json, os, sys
print(json.dumps([__name__, sys.argv, sys.path[0], os.getcwd(), os.environ.get("WORD"), os.getppid()]), flush=True)
print("an error", file=sys.stderr)
if sys.stdin.read() == "raise":
    raise ValueError("no")
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script below needs nothing more."""
    monkeypatch.setattr(popen, "FULL", LIGHT)


@pytest.mark.parametrize("way", [popen.forking, popen.executing])
@pytest.mark.usefixtures("light")
def test_a_script_is_told_the_same_and_tells_the_same(tmp_path: Path, way) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with way():
        done, failed = (
            subprocess.run(
                [sys.executable, str(script), "41"],
                input=text,
                cwd=tmp_path,
                env={**os.environ, "WORD": "x"},
                capture_output=True,
                text=True,
                check=False,
            )
            for text in ("", "raise")
        )
    told = json.loads(done.stdout)
    assert told == ["__main__", [str(script), "41"], str(tmp_path), str(tmp_path), "x", os.getpid()]
    assert (done.returncode, done.stderr) == (41, "an error\n")
    assert failed.returncode == 1 and failed.stderr.endswith("ValueError: no\n")


@pytest.mark.parametrize("way", [popen.forking, popen.executing])
def test_a_server_is_a_child_in_a_session_of_its_own_that_can_be_killed(way) -> None:
    command = [sys.executable, "-m", "psserver", "--ps-hosts", "127.0.0.1:0", "--json", "--no-out"]
    with (
        way(),
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        ) as server,
    ):
        assert server.stdout is not None
        assert json.loads(server.stdout.readline())["event"] == "ready"
        assert psutil.Process(server.pid).parent() == psutil.Process()
        assert os.getsid(server.pid) == server.pid
        os.killpg(server.pid, signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL


def test_what_a_forked_command_starts_is_forked_and_is_its_child(tmp_path: Path, light: None) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "print(type(subprocess.Popen).__name__, subprocess.Popen.__name__, os.getpid(), flush=True)\n"
        "if len(sys.argv) == 1:\n"
        "    sys.exit(subprocess.run([sys.executable, __file__, 'again']).returncode)\n"
        "print(os.getppid())\n"
    )
    with popen.forking():
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    (_, first, pid), (_, second, _), (parent,) = map(str.split, done.stdout.splitlines())
    assert first == second == ("Popen" if popen.SOAK else "ForkingPopen")
    assert parent == pid


@pytest.mark.skipif(bool(popen.SOAK), reason="nothing is forked in a soak")
def test_an_installed_command_looks_for_modules_in_its_own_folder_and_not_in_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = []
    monkeypatch.setattr(popen, "_started", lambda _, command, __: commands.append(command))
    folder = Path(sys.executable).parent
    with popen.forking():
        subprocess.run([folder / "ps-lab", "--version"], stdout=subprocess.DEVNULL, check=True)
        subprocess.run([sys.executable, "-m", "pslab", "--version"], stdout=subprocess.DEVNULL, check=True)
    assert [command.script for command in commands] == [str(folder), ""]


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["-c", "pass"], {}),
        (["-B", "-m", "psserver"], {}),
        (["-m", "psserver"], {"PYTHONHASHSEED": "1"}),
        (["-m", "psserver"], {"NUMBA_CACHE_DIR": "elsewhere"}),
    ],
)
def test_what_a_fork_could_not_do_is_executed(words: list[str], variables: dict[str, str]) -> None:
    assert not popen.forkable([sys.executable, *words], {**os.environ, **variables})
    assert popen.forkable([sys.executable, "-m", "psserver"], {**os.environ, "TF_CONFIG": "{}"})
