"""A run on nodes makes its own certificates: whoever has none is not heard, and no key is left anywhere."""

import re
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from pslab.authority import described
from pslab.commands.live import observer_credentials
from pslab.dashboard.sources import find
from pslab.display.progress import Quiet
from pslab.experiment import Experiment
from pslab.launch.engines.launcher import EngineError
from pslab.launch.security import RunSecurity, options_for
from pslab.launch.status_client import StatusClient, StatusUntrusted
from pslab.launch.tasks import Daemons
from pslab.runs.folder import address_of
from pswire.extras import how_to_install
from pswire.security.names import Role
from pswire.security.settings import SecurityOptions
from pswire.v1 import coordinator_pb2 as pb
from tests.engines.here import run_here
from tests.engines.test_kept_runs import NUMPY
from tests.patience import PATIENCE
from tests.promises import promise

# What nobody presents.
NONE = SecurityOptions()
# Of a job whose first worker has joined.
PHASES = ("waiting for workers", "initialising", "training")


class Joined(Quiet):
    """Tells when a worker has joined, and when the run itself was told its status."""

    def __init__(self) -> None:
        super().__init__()
        self.joined, self.answered = threading.Event(), threading.Event()

    def event(self, name: str, event: dict[str, Any]) -> None:
        if event["event"] == "joined":
            self.joined.set()

    def status(self, status: pb.StatusReply, now: float) -> None:
        self.answered.set()


def words_of_all() -> str:
    """Command lines of everything below this process."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            found.append(" ".join(child.cmdline()))
        except psutil.NoSuchProcess:
            continue
    return "\n".join(found)


class Looking:
    """Looks at a run from beside it: the run itself, with its signals, is in the main thread."""

    def __init__(self, folder: Path, own: SecurityOptions = NONE) -> None:
        """`own`: what the observer presents, where the run's folder has nothing for that."""
        self._folder, self.joined, self.found = folder, Joined(), dict[str, Any]()
        self._own = own
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def run(self, **more: object) -> None:
        end = str(self._folder / "end")
        job = {"script": "tests/cluster/numpy_worker.py", "arguments": ["--seconds", "0.02", "--until", end]}
        what = Experiment.parse({**NUMPY, "job": job, **more}, "test")
        finished = run_here(self._folder / "run", Daemons(), display=self.joined, what=what)
        self._thread.join(PATIENCE)
        assert finished.result.ok, finished
        assert "error" not in self.found, self.found

    def _look(self) -> None:
        try:
            assert self.joined.joined.wait(PATIENCE) and self.joined.answered.wait(60)
            self._ask(self._folder / "run")
        except Exception as error:
            self.found["error"] = repr(error)
        finally:
            (self._folder / "end").touch()

    def _ask(self, run: Path) -> None:
        self.found["words"] = words_of_all()
        self.found["kept"] = (run / "observer").is_dir()
        address = address_of(run)
        for who, credentials in (
            ("observer", observer_credentials(self._own, run)),
            ("stranger", observer_credentials(SecurityOptions())),
        ):
            client = StatusClient(address, credentials=credentials)
            try:
                self.found[who] = client.ask().phase
            except StatusUntrusted as error:
                self.found[who] = error
            finally:
                client.close()
        self.found["page"] = page_of(run, self._own)


def page_of(run: Path, own: SecurityOptions = NONE) -> str:
    """What ps-lab dashboard RUN shows."""
    return find(str(run), observer_credentials(own, run)).kind


@promise("A run on several nodes makes its own certificates and leaves no key behind.")
@pytest.mark.cluster
def test_only_who_has_a_certificate_is_heard_and_no_key_is_left(tmp_path: Path) -> None:
    looking = Looking(tmp_path)
    looking.run()
    assert looking.found["observer"] in PHASES
    assert isinstance(looking.found["stranger"], StatusUntrusted)
    assert (looking.found["page"], page_of(tmp_path / "run")) == ("live", "run")
    assert looking.found["kept"] and not (tmp_path / "run" / "observer").exists()
    assert options_for(tmp_path / "run") == SecurityOptions()
    words = looking.found["words"]
    assert "psserver" in words and "PRIVATE" not in words and "secret" not in words.lower()
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert b"PRIVATE KEY" not in path.read_bytes(), path


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_run_may_say_that_it_needs_none(tmp_path: Path) -> None:
    looking = Looking(tmp_path)
    looking.run(security={"insecure": True})
    assert looking.found["stranger"] in PHASES and not looking.found["kept"]


def test_certificates_that_cannot_be_made_are_an_engines_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pslab.authority.find_spec", lambda name: None)
    with pytest.raises(
        EngineError, match=re.escape(f"{how_to_install('tls')}, or set security.insecure=true")
    ):
        RunSecurity("run")


def test_certificates_name_their_process_and_its_node() -> None:
    security = RunSecurity("my run")
    server = described(security.files(Role.SERVER, "server-1", "10.0.0.7")["cert.pem"])
    worker = described(security.files(Role.WORKER, "w3", "10.0.0.8")["cert.pem"])
    assert str(server.subject) == "ps://my-run/server/server-1" and "10.0.0.7" in server.hosts
    assert str(worker.subject) == "ps://my-run/worker/w3" and worker.hosts == ()
