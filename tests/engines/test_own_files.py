"""A run on nodes under the user's own certificates, which [security] of the experiment names for all processes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pslab.cli import cli
from pslab.launch.engines.launcher import EngineError
from pslab.launch.security import OwnFiles
from pslab.launch.status_client import StatusUntrusted
from pslab.runs.folder import Run
from pswire.config.run_sections import SecuritySection
from pswire.security.settings import SecurityError, SecurityOptions
from tests.cluster.cluster import entries_of
from tests.engines.test_kept_security import PHASES, Looking


def certified(folder: Path, *options: str) -> dict[str, str]:
    """[security] with the files of `ps-lab certs`, for two servers and two workers unless told otherwise."""
    wanted = options or ("--servers", "h0,h1", "--workers", "2")
    done = CliRunner().invoke(cli, ["certs", str(folder), *wanted])
    assert done.exit_code == 0, done.output
    names = {"ca": "ca.pem", "cert": "{name}.pem", "key": "{name}-key.pem"}
    return {key: str(folder / name) for key, name in names.items()}


@pytest.mark.nightly
@pytest.mark.cluster
def test_every_process_shows_its_own(tmp_path: Path) -> None:
    files = certified(tmp_path / "certs")
    own = SecurityOptions(**{f"tls_{key}": path.format(name="observer-0") for key, path in files.items()})
    looking = Looking(tmp_path, own)
    looking.run(security=files)
    assert looking.found["observer"] in PHASES
    assert isinstance(looking.found["stranger"], StatusUntrusted)
    run = Run(tmp_path / "run")
    assert json.loads((run.path / "summary.json").read_text())["security"] == "tls"
    assert {entry["worker"] for entry in entries_of(run, "join")} == {"w0", "w1"}


def test_files_that_ps_lab_cannot_read_are_named_before_anything_starts(tmp_path: Path) -> None:
    section = SecuritySection(**certified(tmp_path))
    (tmp_path / "observer-0.pem").unlink()
    with pytest.raises(
        EngineError, match=r"\[security\]: ps-lab observes the run as observer-0: .*observer-0.pem"
    ):
        OwnFiles(section)


def test_a_path_that_asks_for_a_name() -> None:
    said = SecurityOptions("ca.pem", "{name}.pem", "{name}-key.pem")
    assert said.named("w3") == SecurityOptions("ca.pem", "w3.pem", "w3-key.pem")
    assert SecurityOptions("ca.pem").named("") == SecurityOptions("ca.pem")
    with pytest.raises(SecurityError, match=r"\{name\}.pem: expected a worker's task index"):
        said.named("")
