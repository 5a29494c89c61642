"""Engine "slurm": every process a step of the allocation that ps-lab runs in, one `srun` each."""

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pslab.launch.engines.launcher import EngineError, PlaceError, Task
from pslab.launch.engines.nodes import CommandLauncher, keeper_command
from pslab.launch.engines.placement import Node, cpus_of

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
