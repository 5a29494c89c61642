"""A job's files are found beside the experiment file, and what is missing is said before anything starts."""

from pathlib import Path

import pytest

from pslab.experiment import Experiment
from pslab.launch.job_place import with_job
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode
from tests.replay.command import ps_lab

JOB = "class MyJob:\n    pass\n\n\nother = MyJob\n"


def of(module: str, source: Path, **job: str) -> str:
    return with_job(Experiment.parse({"job": {"module": module, **job}}), source).job.module


def test_a_file_is_looked_for_beside_the_experiment_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    source = Path("there/run.toml")
    (tmp_path / "my_job.py").write_text(JOB, encoding="utf-8")
    assert of("my_job.py:MyJob", source) == "my_job.py:MyJob"
    (tmp_path / "there/my_job.py").write_text(JOB, encoding="utf-8")
    assert of("my_job.py:MyJob", source) == "there/my_job.py:MyJob"
    assert of("my_job.py:other", source) == "there/my_job.py:other"
    assert of(f"{tmp_path}/my_job.py:MyJob", source) == f"{tmp_path}/my_job.py:MyJob"


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            "my_jbo.py:MyJob",
            "there is no file my_jbo.py, neither beside the experiment file nor in the current folder",
        ),
        ("my_job.py:MyJbo", "my_job.py has no 'MyJbo'; did you mean \"MyJob\"?"),
        ("no_such_module:MyJob", "there is no module 'no_such_module'"),
    ],
)
def test_what_is_missing_is_said(
    module: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_job.py").write_text(JOB, encoding="utf-8")
    with pytest.raises(ExperimentError) as refused:
        of(module, Path("run.toml"))
    assert str(refused.value).startswith("run.toml: job.module: ") and said in str(refused.value)


@pytest.mark.parametrize("module", ["json:loads", "here:A", "package.inner:A"])
def test_what_can_be_imported_is_left_to_workers(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").write_text("A = 1\n", encoding="utf-8")
    (tmp_path / "package").mkdir()
    assert of(module, Path("run.toml")) == module


def test_a_run_does_not_begin(tmp_path: Path) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text('[job]\nmodule = "nothing.py:Job"\n', encoding="utf-8")
    said = ps_lab("run", file, "--out", out)
    assert said.code == ExitCode.USAGE and "there is no file nothing.py" in said.err
    assert not out.exists()
