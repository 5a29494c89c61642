"""Signals at bad moments end a command without a traceback: Ctrl-C while its modules load, SIGTERM in a finalizer."""

import signal
import subprocess
import sys

import pytest

from pswire.exits import ExitCode
from tests.patience import PATIENCE

# Presses Ctrl-C when the module in argv[1] is about to be loaded, then runs the package in argv[2] as a command.
PRESS = """
import os, runpy, signal, sys

class Press:
    def find_spec(self, name, path, target=None):
        if name == moment:
            os.kill(os.getpid(), signal.SIGINT)

moment, package = sys.argv[1:3]
sys.argv[1:] = ["--help"]
sys.meta_path.insert(0, Press())
if moment == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    moment = package + ".cli"
runpy.run_module(package, run_name="__main__")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRESS, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("package", ["pslab", "psserver", "psworker"])
def test_ctrl_c_while_a_command_is_loaded(package: str) -> None:
    done = run(f"{package}.cli", package)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_where_it_is_ignored_it_stays_so() -> None:
    done = run("ignored", "pslab")
    assert done.returncode == ExitCode.OK and "Usage: ps-lab" in done.stdout


# SIGTERM arrives in a finalizer, where Python drops what a handler raises.
FINALIZER = """
import signal, threading
from pswire.command.process import exit_on_sigterm

class Last:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

exit_on_sigterm()
Last()
while True:
    threading.Event().wait(0.01)
"""


def test_sigterm_in_a_finalizer_ends_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FINALIZER], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (ExitCode.TERMINATED, "")
