"""What is said, and with which exit code, of a run folder that cannot be worked in: a supervisor reads no sentences."""

from collections.abc import Callable
from pathlib import Path

import pytest

from psserver.checkpoint import Store
from pswire.exits import ExitCode
from tests.checkpoint.written import write
from tests.cluster.cluster import Cluster
from tests.sentences import Recorder

pytestmark = pytest.mark.cluster


def taken(*names: str) -> Callable[[Path], None]:
    """A folder has that name: no file can be written there, not even by root."""
    return lambda folder: (folder.joinpath(*names)).mkdir(parents=True)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (taken("checkpoints", "generation.part"), "checkpoints/generation cannot be written: Is a directory"),
        (taken("checkpoints", ".lock"), "checkpoints: cannot be written to: Is a directory"),
        (taken("decisions.jsonl"), "decisions.jsonl cannot be written: Is a directory"),
        (taken("metrics.jsonl"), "metrics.jsonl cannot be written: Is a directory"),
        (taken("address.part"), "address cannot be written: Is a directory"),
    ],
)
def test_a_folder_that_takes_nothing_has_a_code_of_its_own(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(tmp_path / "run")
    assert said(tmp_path, "--resume", "auto") == (ExitCode.STORAGE, f"ps-server: {tmp_path}/run/{words}")


def test_a_wrong_name_makes_no_folder(tmp_path: Path, sentences: Recorder) -> None:
    code, line = said(tmp_path, "--resume", "latest")
    assert code == ExitCode.USAGE
    sentences.check(line)
    assert not (tmp_path / "run").exists()


def test_checkpoints_of_a_former_run_are_not_begun_over(tmp_path: Path) -> None:
    """Whose log is gone: they would count among those that are kept."""
    write(Store(tmp_path / "run" / "checkpoints"), 10)
    code, line = said(tmp_path, "--checkpoint-every", "5v")
    assert code == ExitCode.USAGE
    assert line.startswith(f"ps-server: --out {tmp_path}/run: holds checkpoints of a run already")
    assert not (tmp_path / "run" / "decisions.jsonl").exists()


def said(folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and last line of a server that does not get to serve."""
    with Cluster(folder) as cluster:
        server = cluster.launch(
            "server", "-m", "psserver", "--ps-hosts", "127.0.0.1:0", "--out", str(folder / "run"), *options
        )
        try:
            code = server.wait_exit()
            assert "Traceback" not in server.errors, server.errors
            return code, server.errors.splitlines()[-1]
        finally:
            server.close()
