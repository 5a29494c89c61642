"""Engine "slurm": every process is a step of the allocation in which ps-lab runs, started by one `srun` each."""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pslab.launch.engines.launcher import EngineError, PlaceError, Task
from pslab.launch.remote.launcher import RemoteLauncher, keeper_command
from pslab.launch.remote.places import Node, cpus_of
from pslab.launch.remote.process import CommandPipe

# Seconds that the controller may take to answer.
CONTROLLER = 20.0
_TIMES = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_NODE = re.compile(r"\bNodeName=(\S+).*?\bNodeAddr=(\S+)", re.DOTALL)


class SlurmLauncher(RemoteLauncher):
    """A launcher inside an allocation. `environment`: that of a step or batch script of the allocation."""

    def __init__(self, cwd: Path, wait: float, environment: Mapping[str, str]) -> None:
        """Look for Slurm and the allocation. Raises EngineError without them."""
        super().__init__(cwd, wait)
        need("srun")
        need("scontrol")
        if "SLURM_JOB_ID" not in environment:
            raise EngineError(
                "engine slurm: expected to run inside salloc or sbatch, got no SLURM_JOB_ID: this is "
                "no allocation of Slurm"
            )
        self._environment = environment

    def nodes(self) -> Sequence[Node]:
        """Return the nodes of the allocation with its processors."""
        per_node = self._environment.get("SLURM_JOB_CPUS_PER_NODE", "")
        names = _ask("scontrol", "show", "hostnames", self._environment.get("SLURM_JOB_NODELIST", "")).split()
        cpus = counts(per_node)
        if not names or len(cpus) != len(names):
            raise PlaceError(
                f"engine slurm: expected a number of processors for each of {len(names)} nodes, got "
                f"SLURM_JOB_CPUS_PER_NODE={per_node!r}"
            )
        where = addresses(_ask("scontrol", "show", "node", ",".join(names)))
        return [
            Node(name, where.get(name, name), cpus=number) for name, number in zip(names, cpus, strict=True)
        ]

    def pipe(self, node: Node, task: Task, log: int) -> CommandPipe:
        """Start the keeper as a step with one task."""
        return CommandPipe([*self.step(node, task), *keeper_command()], log)

    def step(self, node: Node, task: Task) -> list[str]:
        """Return what starts a step. The step ends alone: the run decides whether the job goes on."""
        resources = task.resources
        step = [*("srun", "--exact", "-N1", "-n1", "-w", node.name, "--unbuffered", "--kill-on-bad-exit=0")]
        step += [f"--cpus-per-task={cpus_of(resources)}", f"--job-name={task.name}", "--mpi=none"]
        if resources.memory:
            step.append(f"--mem={-(-resources.memory // 2**20)}M")
        elif whole := self._environment.get("SLURM_MEM_PER_NODE", ""):
            # A step without --mem takes the whole node, and the next one would wait for ever.
            beside = Counter(place.name for place in self._places.values())[node.name]
            step.append(f"--mem={int(whole) // beside}M")
        if self._plan is not None and task.name in self._plan.moved:
            # Those that were on the node before it may have shared all its memory among them.
            step.append("--overlap")
        if resources.gpus:
            step.append(f"--gres=gpu:{resources.gpus}")
        return step


def need(command: str) -> None:
    """Raise EngineError if the command does not exist."""
    if shutil.which(command) is None:
        raise EngineError(f"engine slurm needs Slurm's command {command}, and there is none in PATH")


def counts(text: str) -> list[int]:
    """Expand Slurm's notation: ``2(x3),4`` is 2, 2, 2, 4."""
    return [int(number) for number, times in _TIMES.findall(text) for _ in range(int(times) if times else 1)]


def addresses(shown: str) -> dict[str, str]:
    """Return the address of each node in the output of ``scontrol show node``."""
    return dict(_NODE.findall(shown))


def _ask(*command: str) -> str:
    """Return the command's output. Raises PlaceError when the controller does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CONTROLLER, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlaceError(f"engine slurm: {' '.join(command[:3])} did not answer: {error}") from error
    if done.returncode:
        raise PlaceError(f"engine slurm: {' '.join(command[:3])} failed: {done.stderr.strip()}")
    return done.stdout
