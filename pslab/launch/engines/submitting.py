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
from pslab.runs.making import SUBMITTED, open_folder
from psserver.checkpoint.resumption import AUTO, LATEST
from pswire.config.experiment import Experiment
from pswire.own_files import write_file

# The script, the experiment, and what ps-lab itself prints there.
SCRIPT, TOLD, SAID = SUBMITTED
# Seconds before the end of the allocation's time at which ps-lab is told to stop.
NOTICE = 60


@dataclass(frozen=True, slots=True)
class Submitted:
    """`job`: its number. `folder`: where the run will be."""

    job: str
    folder: Path


def submit(
    experiment: Experiment,
    out: Path | None,
    force: bool,
    going_on: str | None,
    options: Sequence[str],
    cwd: Path,
) -> Submitted:
    """Write the script into the run folder and submit it. `going_on`: the checkpoint from which the run in `out` goes
    on. `options`: more of ps-lab run's.

    Raises RunError where the folder cannot be used, EngineError where Slurm takes no job.
    """
    need("sbatch")
    folder, _ = open_folder(out, experiment.run.name, force, going_on)
    write_file(folder / TOLD, experiment.to_toml())
    file = folder / SCRIPT
    write_file(file, script(experiment, folder, going_on, options, cwd))
    if (folder / SAID).is_symlink():
        # Slurm would follow it.
        (folder / SAID).unlink()
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


def script(
    experiment: Experiment, folder: Path, going_on: str | None, options: Sequence[str], cwd: Path
) -> str:
    """The batch script. Partition, account and time come from SBATCH_PARTITION and the like.

    Slurm begins it again where a node fails, or an administrator requeues it: then the run goes on from its newest
    checkpoint. A run that has none, or that was told which one to take, is not begun again.
    """
    begins_again = bool(experiment.run.checkpoint_every) and going_on in (None, AUTO, LATEST)
    cluster = experiment.cluster
    place, tasks = cluster.place, cluster.servers + cluster.workers
    asked = [
        f"--job-name={re.sub(r'[^A-Za-z0-9._-]', '_', experiment.run.name)}",
        f"--chdir={cwd}",
        f"--output={folder / SAID}",
        f"--ntasks={tasks}",
        f"--cpus-per-task={max(place.servers.cpus, place.workers.cpus, 1)}",
        f"--signal=B:TERM@{NOTICE}",
        "--open-mode=append",
        # A lost node ends the processes there, not the allocation.
        "--no-kill",
        "--requeue" if begins_again else "--no-requeue",
    ]
    if place.servers.spread:
        asked.append(f"--nodes={cluster.servers}-{tasks}")
    if place.workers.gpus:
        asked.append(f"--gpus={place.workers.gpus * cluster.workers}")
    command = [*(sys.executable, "-m", "pslab", "run", str(folder / TOLD), "--engine", "slurm")]
    command += ["--out", str(folder), "--resume", going_on or AUTO, *options]
    lines = ["#!/bin/sh", *(f"#SBATCH {each}" for each in asked)]
    # In place of the shell, so that the signal above reaches ps-lab.
    return "\n".join([*lines, f"exec {shlex.join(command)}"]) + "\n"
