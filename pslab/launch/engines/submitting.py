"""`--submit`: a batch job of Slurm in which ps-lab runs the experiment, engine "slurm"."""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pslab.launch.engines.launcher import EngineError
from pslab.launch.engines.slurm import CONTROLLER, need
from pslab.runs.folder import EXPERIMENT
from pslab.runs.making import free_folder, make_folder
from pswire.config.experiment import Experiment

SCRIPT = "submit.sh"
# What ps-lab itself prints there.
SAID = "submit.log"
# Seconds before the end of the allocation's time at which ps-lab is told to stop.
NOTICE = 60


@dataclass(frozen=True, slots=True)
class Submitted:
    """`job`: its number. `folder`: where the run will be."""

    job: str
    folder: Path


def submit(
    experiment: Experiment, out: Path | None, force: bool, options: Sequence[str], cwd: Path
) -> Submitted:
    """Writes the script into the run folder and submits it. `options`: more of ps-lab run's.

    Raises RunError where the folder cannot be used, EngineError where Slurm takes no job.
    """
    need("sbatch")
    folder = make_folder(out or free_folder(experiment.run.name), force)
    (folder / EXPERIMENT).write_text(experiment.to_toml(), encoding="utf-8")
    file = folder / SCRIPT
    file.write_text(script(experiment, folder, options, cwd), encoding="utf-8")
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(file)],
            capture_output=True,
            text=True,
            timeout=CONTROLLER,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"sbatch did not answer: {error}") from error
    if done.returncode:
        raise EngineError(f"sbatch took no job: {done.stderr.strip()}; its script is {file}")
    return Submitted(done.stdout.strip().partition(";")[0], folder)


def script(experiment: Experiment, folder: Path, options: Sequence[str], cwd: Path) -> str:
    """The batch script. Partition, account and time come from SBATCH_PARTITION and the like."""
    cluster = experiment.cluster
    place, tasks = cluster.place, cluster.servers + cluster.workers
    asked = [
        f"--job-name={re.sub(r'[^A-Za-z0-9._-]', '_', experiment.run.name)}",
        f"--chdir={cwd}",
        f"--output={folder / SAID}",
        f"--ntasks={tasks}",
        f"--cpus-per-task={max(place.servers.cpus, place.workers.cpus, 1)}",
        f"--signal=B:TERM@{NOTICE}",
    ]
    if place.servers.spread:
        asked.append(f"--nodes={cluster.servers}-{tasks}")
    if place.workers.gpus:
        asked.append(f"--gpus={place.workers.gpus * cluster.workers}")
    command = [*(sys.executable, "-m", "pslab", "run", str(folder / EXPERIMENT), "--engine", "slurm")]
    command += ["--out", str(folder), "--force", *options]
    lines = ["#!/bin/sh", *(f"#SBATCH {each}" for each in asked)]
    # In place of the shell, so that the signal above reaches ps-lab.
    return "\n".join([*lines, f"exec {shlex.join(command)}"]) + "\n"
