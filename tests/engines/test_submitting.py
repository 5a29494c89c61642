"""The batch job of Slurm that `ps-lab run --submit` makes: what its script asks for and runs."""

import shlex
from pathlib import Path

import pytest

from pslab.launch.engines.slurm import submit
from pslab.runs.folder import RunError
from pswire.config.experiment import Experiment
from tests.lab.drive import experiment
from tests.lab.logs import async_log, write_run


@pytest.fixture(autouse=True)
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes every job."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def made(experiment: Experiment, out: Path, resume_from: str | None = None) -> tuple[list[str], list[str]]:
    """What the script asks Slurm for, and the options of its command."""
    done = submit(experiment, out, False, resume_from, [], out.parent)
    assert (done.job, done.folder) == ("7", out)
    first, *lines, last = (out / "submit.sh").read_text().splitlines()
    assert first == "#!/bin/sh"
    return [line.removeprefix("#SBATCH ") for line in lines], shlex.split(last)


def saving() -> Experiment:
    plain = experiment()
    return plain.model_copy(update={"run": plain.run.model_copy(update={"checkpoint_every": "10v"})})


def resumes(command: list[str]) -> str:
    return command[command.index("--resume") + 1]


def test_a_job_that_saves_goes_on_when_slurm_begins_it_again(tmp_path: Path) -> None:
    asked, command = made(saving(), tmp_path / "run")
    assert "--requeue" in asked and "--open-mode=append" in asked and "--no-kill" in asked
    assert resumes(command) == "auto" and "--force" not in command


def test_a_job_that_saves_nothing_is_not_begun_again(tmp_path: Path) -> None:
    asked, command = made(experiment(), tmp_path / "run")
    assert "--no-requeue" in asked and "--force" not in command


@pytest.mark.parametrize(("which", "again"), [("latest", "--requeue"), ("0000000050-ab", "--no-requeue")])
def test_a_job_may_go_on_in_a_run(tmp_path: Path, which: str, again: str) -> None:
    """From a checkpoint of that name once: begun again it would undo what it has done since."""
    folder = write_run(tmp_path / "run", async_log())
    (folder / "experiment.toml").write_text("former")
    asked, command = made(saving(), folder, which)
    assert again in asked and resumes(command) == which
    # Until it goes on, the folder describes the run that is in it.
    assert (folder / "experiment.toml").read_text() == "former"
    assert (folder / "submit.toml").read_text() == saving().to_toml()


def test_two_jobs_are_not_submitted_for_one_folder(tmp_path: Path) -> None:
    made(saving(), tmp_path / "run")
    with pytest.raises(RunError, match="is not empty"):
        submit(saving(), tmp_path / "run", False, None, [], tmp_path)
    submit(saving(), tmp_path / "run", True, None, [], tmp_path)
