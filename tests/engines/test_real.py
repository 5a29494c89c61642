"""Engines slurm and ssh against a real Slurm of three nodes and a real sshd: success, losses, ends, codes."""

import json
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psserver.checkpoint import Store
from pswire.exits import ExitCode
from tests.cluster.cluster import entries_of
from tests.engines.sites import ROOT, Site, missing, running, site
from tests.lab.test_local import assert_gone
from tests.patience import PATIENCE
from tests.repetitions import SOAK

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# Of one batch job.
REQUEUES = 2 if SOAK else 1
EXPERIMENT = """
[run]
name = "real"

[cluster]
servers = 2
workers = 2
worker_timeout = 10.0

[policy]
name = "async"

[optimizer]
name = "sgd"

[job]
script = "tests/engines/worker.py"
arguments = {arguments}
"""


@pytest.fixture(scope="module", params=[pytest.param("slurm", marks=pytest.mark.nightly), "ssh"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    absent = missing(request.param)
    if absent is not None:
        pytest.skip(absent)
    with site(request.param, tmp_path_factory.mktemp("site") / request.param) as made:
        yield made


# What only Slurm has: places that others keep, and batch jobs.
SLURM_ALONE = pytest.mark.parametrize(
    "place", [pytest.param("slurm", marks=pytest.mark.nightly)], indirect=True
)


def experiment(folder: Path, *arguments: str) -> str:
    file = folder / "experiment.toml"
    file.write_text(EXPERIMENT.format(arguments=json.dumps(arguments)), encoding="utf-8")
    return str(file)


def endless(folder: Path) -> str:
    """Until a file of that name is there."""
    return experiment(folder, "--seconds", "0.02", "--until", str(folder / "end"))


def killed(place: Site) -> Sequence[str]:
    """The worker, its keeper, what runs the keeper on the node. Of the last, srun says nothing: half a minute."""
    return ("worker", "keeper", "agent") if SOAK or place.engine == "ssh" else ("worker", "keeper")


def test_what_is_killed_comes_back_and_the_run_succeeds(place: Site, tmp_path: Path) -> None:
    command = place.run(endless(tmp_path), "--out", str(tmp_path / "run"))
    with running(command, place.environment) as run:
        first = run.until("worker-0", "where")
        for generation in range(len(killed(place))):
            where = run.until("worker-1", "where")
            pid = where["pid"]
            run.until("worker-1", "joined")
            chain = [psutil.Process(pid), *psutil.Process(pid).parents()]
            chain[generation].kill()
            assert_gone([pid])
        run.until("worker-1", "joined")
        (tmp_path / "end").touch()
        end = run.end()
    assert (run.process.returncode, end["code"]) == (0, 0), end
    assert len(end["warnings"]) == len(killed(place)) and all(
        "started again" in each for each in end["warnings"]
    )
    log = Run(tmp_path / "run")
    assert check_run(log).ok
    joins = [entry["incarnation"] for entry in entries_of(log, "join") if entry["worker"] == "w1"]
    assert joins == list(range(1 + len(killed(place))))
    if place.engine == "slurm":
        # Servers on n1, workers on the others.
        assert first["node"] == "n2" and where["node"] == "n3"
    place.assert_nothing_left()


ENDS = {"slurm": signal.SIGINT, "ssh": signal.SIGKILL}


@pytest.mark.nightly
def test_nothing_is_left_however_ps_lab_ends(place: Site, tmp_path: Path) -> None:
    for number in [signal.SIGINT, signal.SIGKILL] if SOAK else [ENDS[place.engine]]:
        command = place.run(endless(tmp_path), "--out", str(tmp_path / number.name))
        with running(command, place.environment) as run:
            pids = [run.until(f"worker-{n}", "where")["pid"] for n in range(2)]
            for n in range(2):
                run.until(f"worker-{n}", "joined")
            run.lab.send_signal(number)
            if number == signal.SIGINT:
                assert run.end()["reason"] == "stopped by SIGINT"
                assert run.process.returncode == ExitCode.INTERRUPTED
            else:
                run.process.communicate(timeout=PATIENCE)
        assert_gone(pids)
        place.assert_nothing_left()


@pytest.mark.nightly
@SLURM_ALONE
def test_room_that_others_keep_is_waited_for_and_no_longer(place: Site, tmp_path: Path) -> None:
    """Another step has all processors of the first node."""
    words = ["--out", str(tmp_path / "run"), "--set", "cluster.place.place_timeout=2.0"]
    lab = shlex.join(
        [sys.executable, "-m", "pslab", "run", experiment(tmp_path), "--engine", "slurm", *words]
    )
    busy = "srun --exact -N1 -n1 -c4 -w n1 --mpi=none sleep 600 & while ! squeue -s -h | grep -q sleep; do :; done"
    command = [*place.around, "sh", "-c", f'{busy}; {lab} "$@"', "sh"]
    with running(command, place.environment) as run:
        end = run.end()
    assert run.process.returncode == ExitCode.UNREACHABLE
    assert end["reason"].startswith("server-1 found no place on n1: no keeper answered")
    place.assert_nothing_left()


@pytest.mark.nightly
@SLURM_ALONE
def test_a_batch_job_runs_the_experiment_and_status_finds_it(place: Site, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = submitted(place, endless(tmp_path), folder)
    until(lambda: (folder / "address").is_file())
    assert "version" in lab(place, "status", str(folder))
    (tmp_path / "end").touch()
    until(lambda: (folder / "summary.json").is_file())
    until(lambda: state(place, job) == "COMPLETED")
    assert check_run(Run(folder)).ok
    assert f"run folder: {folder}" in Path(f"{folder}.log").read_text()


@pytest.mark.nightly
@SLURM_ALONE
def test_a_batch_job_that_is_requeued_goes_on_from_its_newest_checkpoint(place: Site, tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "run" / "decisions.jsonl"
    job = submitted(place, endless(tmp_path), folder, "--set", "run.checkpoint_every='20 versions'")
    for life in range(1, REQUEUES + 1):
        until(lambda life=life: log.is_file() and len(entries_of(Run(folder), "restore")) == life - 1)
        until(lambda: bool(Store(folder / "checkpoints").names()))
        asked(place, "scontrol", "requeue", job)
    # Slurm lets a requeued job wait for half a minute.
    until(lambda: len(entries_of(Run(folder), "restore")) == REQUEUES, 4 * PATIENCE)
    (tmp_path / "end").touch()
    until(lambda: state(place, job) == "COMPLETED")
    run = Run(folder)
    assert check_run(run).ok and run.summary.success
    assert min(entry["version"] for entry in entries_of(run, "restore")) > 0
    place.assert_nothing_left()


@pytest.mark.nightly
@SLURM_ALONE
def test_a_batch_job_that_is_cancelled_leaves_its_weights(place: Site, tmp_path: Path) -> None:
    """All of its processes get SIGTERM at once, some of them twice."""
    folder = tmp_path / "run"
    job = submitted(place, endless(tmp_path), folder)
    until(lambda: (folder / "metrics.jsonl").is_file() and (folder / "metrics.jsonl").stat().st_size > 0)
    asked(place, "scancel", job)
    until(lambda: state(place, job) == "CANCELLED" and (folder / "summary.json").is_file())
    run = Run(folder)
    assert check_run(run).ok and not run.summary.success
    assert (folder / "weights.safetensors").is_file()
    place.assert_nothing_left()


def lab(place: Site, *words: str) -> str:
    """What ps-lab prints, outside of any allocation."""
    return asked(place, sys.executable, "-m", "pslab", *words)


def submitted(place: Site, experiment: str, folder: Path, *words: str) -> str:
    """As a batch job, by a script as in docs/guides/schedulers.md; its number."""
    lab = [sys.executable, "-m", "pslab", "run", experiment, "--engine", "slurm", "--out", str(folder)]
    script = folder.with_suffix(".sh")
    script.write_text(
        "#!/bin/sh\n"
        "#SBATCH --nodes=3 --exclusive\n"
        f"#SBATCH --no-kill --requeue --open-mode=append --signal=B:TERM@60 --output={folder}.log\n"
        f"exec {shlex.join([*lab, '--resume', 'auto', *words])}\n"
    )
    return asked(place, "sbatch", "--parsable", str(script)).strip()


def asked(place: Site, *command: str, seconds: float = 2 * PATIENCE) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=dict(place.environment),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def state(place: Site, job: str) -> str:
    """Of a job of Slurm."""
    text = asked(place, "scontrol", "show", "job", job)
    return text.partition("JobState=")[2].split()[0]


def until(true: Callable[[], bool], seconds: float = 2 * PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.1)
