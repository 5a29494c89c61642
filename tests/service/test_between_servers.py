"""A signal that comes between two servers of one process, while there is none whose job it could end."""

import subprocess
import sys
from signal import SIGINT, SIGTERM

import pytest

from psserver.options import Options
from psserver.service.life.servers import Servers
from psserver.service.life.settings import ServerSettings
from psserver.service.runtime import BindError
from psserver.service.server import Server
from psserver.settings import resolve
from pswire.exits import ExitCode
from tests.patience import PATIENCE

LOST = "server 1 was lost"


def settings() -> ServerSettings:
    return resolve(Options(ps_hosts="127.0.0.1:0", task_index=0), None)


@pytest.mark.parametrize(("number", "code"), [(SIGTERM, ExitCode.TERMINATED), (SIGINT, ExitCode.INTERRUPTED)])
def test_no_other_server_begins(monkeypatch: pytest.MonkeyPatch, number: int, code: ExitCode) -> None:
    ran: list[Server] = []

    def run(server: Server) -> ExitCode:
        ran.append(server)
        server.continuation.again = LOST
        return ExitCode.UNREACHABLE

    def again() -> ServerSettings:
        servers.interrupt(number, None)
        return settings()

    monkeypatch.setattr(Server, "run", run)
    servers = Servers(settings(), again, lambda *_: None)
    assert servers.run() == code and len(ran) == 1


def test_one_that_waits_for_its_port_ends_with_the_signals_code(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Server] = []

    def run(server: Server) -> ExitCode:
        ran.append(server)
        if len(ran) == 1:
            server.continuation.again = LOST
            return ExitCode.UNREACHABLE
        servers.interrupt(SIGTERM, None)
        raise BindError("its port is not free yet")

    monkeypatch.setattr(Server, "run", run)
    servers = Servers(settings(), settings, lambda *_: None)
    assert servers.run() == ExitCode.TERMINATED and len(ran) == 2


ENDING = """
import atexit, signal
from psserver.service.server import Server
Server.run = lambda server: 0
atexit.register(lambda: print(signal.getsignal(signal.SIGTERM).name))
from psserver.__main__ import run
run()
"""


def test_a_signal_at_the_end_of_the_interpreter_does_not_replace_the_exit_code() -> None:
    """Python would restore the default handler there, which kills."""
    command = [sys.executable, "-c", ENDING, "--ps-hosts", "127.0.0.1:0", "--no-out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "SIG_IGN\n"), done.stderr
