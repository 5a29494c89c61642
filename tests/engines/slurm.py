"""A real Slurm for tests: slurmctld and three slurmd, as nodes n1, n2, n3 of four processors each; all on this machine,
or on one each of tests.machines. MUNGE, with a key of the test's own, says who asks.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engines.hosts import Host, this_machine
from tests.engines.ports import unclaimed
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
NODES = ("n1", "n2", "n3")
CPUS = 4
COMMANDS = ("slurmctld", "slurmd", "srun", "salloc", "sbatch", "scontrol", "squeue", "munged", "mungekey")
# Seconds until all nodes are idle.
BEGIN = 2 * PATIENCE


def missing() -> str | None:
    """Why there are no tests with Slurm here, in one line; None: there are."""
    absent = [command for command in COMMANDS if shutil.which(command) is None]
    if absent:
        return f"no {', '.join(absent)} (apt-get install slurm-wlm munge)"
    return None if os.geteuid() == 0 else "slurmd needs root"


@dataclass(frozen=True)
class Slurm:
    """A running one. `environment`: of its commands, which run at `control`."""

    folder: Path
    environment: dict[str, str]
    control: Host

    def ask(self, *command: str) -> str:
        done = subprocess.run(
            [*self.control.prefix, *command],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def lab_around(self, nodes: int = 3) -> list[str]:
        """What makes a command run in an allocation of so many whole nodes."""
        return [
            *self.control.prefix,
            "salloc",
            "--quiet",
            f"--nodes={nodes}",
            "--exclusive",
            "--immediate=60",
        ]

    def steps(self) -> list[str]:
        """Names of those that run."""
        return self.ask("squeue", "--steps", "--noheader", "--format=%j").split()


@contextmanager
def serving(folder: Path, control: Host | None = None, nodes: Sequence[Host] = ()) -> Iterator[Slurm]:
    """Until the end of the block; ends the daemons that it started, by their numbers. `nodes`: where n1, n2, n3 are."""
    control = control or this_machine()
    nodes = nodes or (control,) * len(NODES)
    folder.mkdir()
    file = folder / "slurm.conf"
    file.write_text(_configuration(folder, control, nodes), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    environment |= {"SLURM_CONF": str(file), "PYTHONPATH": str(ROOT)}
    slurm = Slurm(folder, environment, control)
    subprocess.run(
        ["mungekey", "--create", f"--keyfile={folder / 'munge.key'}"], check=True, timeout=PATIENCE
    )
    with ExitStack() as stack:
        stack.enter_context(_daemon(_munged(folder), slurm, control))
        stack.enter_context(_daemon(["slurmctld", "-D", "-i", "-f", str(file)], slurm, control))
        for node, host in zip(NODES, nodes, strict=True):
            stack.enter_context(_daemon(["slurmd", "-D", "-N", node, "-f", str(file)], slurm, host))
        _until_idle(slurm)
        try:
            yield slurm
        finally:
            # Of a test that failed: its tasks would outlive these daemons, but not a machine of its own.
            if not control.prefix:
                _cancel_all(slurm)


@contextmanager
def _daemon(command: Sequence[str], slurm: Slurm, host: Host) -> Iterator[None]:
    name = "-".join([command[0], *command[3:4]]).replace("/", "_")
    with (slurm.folder / f"{name}.out").open("wb") as output:
        process = subprocess.Popen(
            [*host.prefix, *command],
            env=slurm.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield
    finally:
        host.end(process)


def _munged(folder: Path) -> list[str]:
    """Its socket is a file: the machines share it. By force, for the folder belongs to no user of MUNGE's own."""
    files = {"key": "key", "pid": "pid", "seed": "seed", "log": "log"}
    named = [f"--{what}-file={folder / f'munge.{end}'}" for what, end in files.items()]
    return ["munged", "--foreground", "--force", f"--socket={folder / 'munge.socket'}", *named]


def _cancel_all(slurm: Slurm) -> None:
    if slurm.ask("squeue", "--noheader"):
        slurm.ask("scancel", "--user=root")
        _until_idle(slurm)


def _until_idle(slurm: Slurm) -> None:
    deadline = time.monotonic() + BEGIN
    states = ""
    while time.monotonic() < deadline:
        done = subprocess.run(
            [*slurm.control.prefix, "sinfo", "--noheader", "--Node", "--format=%N=%t"],
            env=slurm.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        states = done.stdout + done.stderr
        if sorted(done.stdout.split()) == [f"{node}=idle" for node in NODES]:
            return
        # Until it answers, there is nothing to wait on.
        subprocess.run(["sleep", "0.2"], check=True)
    logs = "".join(path.read_text()[-2000:] for path in slurm.folder.glob("*.out"))
    raise AssertionError(f"Slurm did not begin in {BEGIN:g} s: {states}\n{logs}")


def _configuration(folder: Path, control: Host, hosts: Sequence[Host]) -> str:
    first, *ports = unclaimed(1 + len(NODES))
    nodes = [
        f"NodeName={node} NodeHostname={host.name} NodeAddr={host.address} Port={port} CPUs={CPUS} RealMemory=1000"
        for node, host, port in zip(NODES, hosts, ports, strict=True)
    ]
    (folder / "state").mkdir()
    settings = {
        "ClusterName": "tests",
        "SlurmctldHost": f"{control.name}({control.address})",
        "SlurmctldPort": first,
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        # A job that is requeued begins again when its credentials are certainly of no use any more: two minutes.
        "AuthInfo": f"socket={folder / 'munge.socket'},cred_expire=5",
        "CredType": "cred/munge",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "SlurmdParameters": "config_overrides",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/none",
        "ReturnToService": 2,
        "KillWait": 5,
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool.%n",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd.%n.pid",
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    return (
        "\n".join([*lines, *nodes, f"PartitionName=all Nodes={','.join(NODES)} Default=YES State=UP"]) + "\n"
    )
