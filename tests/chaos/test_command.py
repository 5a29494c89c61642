"""What `ps-lab chaos` refuses before it starts anything."""

from pathlib import Path

from click.testing import CliRunner

from pslab.cli import cli
from pslab.commands.failure import Failure
from pswire.exits import ExitCode

FILE, REPLICAS = (str(Path(__file__).with_name(name)) for name in ("numpy.toml", "replicas.toml"))


def refusal(*arguments: str, file: str = FILE) -> str:
    said = CliRunner().invoke(cli, ["chaos", file, *arguments], standalone_mode=False)
    assert isinstance(said.exception, Failure) and said.exception.code == ExitCode.USAGE
    return said.exception.message


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    assert f"{tmp_path}: expected a new or empty folder" in refusal("--out", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_experiment_that_runs_elsewhere_is_refused_and_makes_no_folder(tmp_path: Path) -> None:
    said = refusal("--out", str(tmp_path / "out"), "--set", "run.engine=ssh")
    assert "expected local, got ssh: chaos disturbs processes of this machine" in said
    assert not (tmp_path / "out").exists()


def test_a_role_of_replicas_is_refused_without_them(tmp_path: Path) -> None:
    said = refusal("--out", str(tmp_path / "out"), "--role", "voter")
    assert said == "--role voter: expected a job with replicas (cluster.replicas = 2), got one without"


def test_nobody_votes_where_two_servers_have_copies(tmp_path: Path) -> None:
    two = "--set", "cluster.servers=2"
    said = refusal("--out", str(tmp_path / "out"), *two, "--role", "voter", file=REPLICAS)
    assert (
        said.startswith("--role voter: expected an odd number of servers") and not (tmp_path / "out").exists()
    )


def test_no_connection_is_cut_with_replicas(tmp_path: Path) -> None:
    said = refusal("--out", str(tmp_path / "out"), "--kind", "kill", "--kind", "cut", file=REPLICAS)
    assert said.startswith("--kind cut: expected kill or stop, because workers of a job with replicas")
    assert not (tmp_path / "out").exists()
