"""Engine "slurm": every process a step of the allocation that ps-lab runs in, one `srun` each; with `--submit` a batch
job in which ps-lab runs the experiment."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pslab.launch.engines.launcher import EngineError, PlaceError, Task
from pslab.launch.engines.nodes import CommandLauncher, keeper_command
from pslab.launch.engines.placement import Node, cpus_of
from pslab.runs.making import SUBMITTED, open_folder
from psserver.checkpoint.resumption import AUTO, LATEST
from pswire.config.experiment import Experiment
from pswire.own_files import write_file

# Seconds that the controller may take to answer.
CONTROLLER = 20.0
_TIMES = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_NODE = re.compile(r"\bNodeName=(\S+).*?\bNodeAddr=(\S+)", re.DOTALL)


class SlurmLauncher(CommandLauncher):
    """`environment`: of a step or batch script of the allocation. Raises EngineError where there is none."""

    def __init__(self, cwd: Path, wait: float, environment: Mapping[str, str]) -> None:
        super().__init__(cwd, wait)
        need("srun")
        need("scontrol")
        if "SLURM_JOB_ID" not in environment:
            raise EngineError(
                "engine slurm: this is no allocation of Slurm (no SLURM_JOB_ID): expected salloc or sbatch around it, "
                "or --submit"
            )
        self._environment = environment

    def nodes(self) -> Sequence[Node]:
        """Those of the allocation, with its processors."""
        said = self._environment
        names = _asked("scontrol", "show", "hostnames", said.get("SLURM_JOB_NODELIST", "")).split()
        cpus = counts(said.get("SLURM_JOB_CPUS_PER_NODE", ""))
        if not names or len(cpus) != len(names):
            raise PlaceError(
                f"engine slurm: expected a number of processors for each of {len(names)} nodes, got "
                f"SLURM_JOB_CPUS_PER_NODE={said.get('SLURM_JOB_CPUS_PER_NODE', '')!r}"
            )
        where = addresses(_asked("scontrol", "show", "node", ",".join(names)))
        return [
            Node(name, where.get(name, name), cpus=number) for name, number in zip(names, cpus, strict=True)
        ]

    def command(self, node: Node, task: Task) -> list[str]:
        """One step of one task. It ends alone: whether the job goes on is the run's verdict."""
        resources = task.resources
        step = [*("srun", "--exact", "-N1", "-n1", "-w", node.name, "--unbuffered", "--kill-on-bad-exit=0")]
        step += [f"--cpus-per-task={cpus_of(resources)}", f"--job-name={task.name}", "--mpi=none"]
        if resources.memory:
            step.append(f"--mem={-(-resources.memory // 2**20)}M")
        elif whole := self._environment.get("SLURM_MEM_PER_NODE", ""):
            # A step that says nothing takes all of it, and the next one waits for ever.
            beside = Counter(place.name for place in self._places.values())[node.name]
            step.append(f"--mem={int(whole) // beside}M")
        if resources.gpus:
            step.append(f"--gres=gpu:{resources.gpus}")
        return [*step, *keeper_command()]


def need(command: str) -> None:
    """Raises EngineError where there is no such command."""
    if shutil.which(command) is None:
        raise EngineError(f"engine slurm needs Slurm's command {command}, and there is none in PATH")


def counts(text: str) -> list[int]:
    """``2(x3),4`` is 2, 2, 2, 4."""
    return [int(number) for number, times in _TIMES.findall(text) for _ in range(int(times) if times else 1)]


def addresses(shown: str) -> dict[str, str]:
    """By node, of what ``scontrol show node`` prints: where Slurm itself reaches it."""
    return dict(_NODE.findall(shown))


def allocation() -> Mapping[str, str]:
    """This process's environment."""
    return dict(os.environ)


def _asked(*command: str) -> str:
    """Raises PlaceError where the controller does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CONTROLLER, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlaceError(f"engine slurm: {' '.join(command[:3])} did not answer: {error}") from error
    if done.returncode:
        raise PlaceError(f"engine slurm: {' '.join(command[:3])} failed: {done.stderr.strip()}")
    return done.stdout


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
