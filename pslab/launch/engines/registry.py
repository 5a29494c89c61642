"""The engines by name, with what each needs and what it can guarantee a process."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pslab.experiment import Experiment
from pslab.launch.engines.launcher import EngineError, Launcher
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.engines.ray.launcher import RayLauncher, chosen_cluster
from pslab.launch.engines.slurm import SlurmLauncher
from pslab.launch.engines.ssh import SshLauncher
from pswire.nearest import did_you_mean


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Command-line options for one engine; empty values mean that the option was not given.

    `hosts`: machines for ssh, as in cluster.hosts. `address`: of a Ray cluster.
    """

    hosts: tuple[str, ...] = ()
    address: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine. `make` raises EngineError when something is missing; None for a virtual clock without processes.

    The path is the working directory of the processes, against which job paths are resolved. `honours`: keys of
    [cluster.place] that the engine can guarantee. `takes`: fields of `EngineOptions` that it accepts.
    """

    name: str
    summary: str
    make: Callable[[Experiment, EngineOptions, Path], Launcher] | None
    honours: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()


def _slurm(experiment: Experiment, options: EngineOptions, cwd: Path) -> Launcher:
    return SlurmLauncher(cwd, experiment.cluster.place.place_timeout, os.environ)


def _ray(experiment: Experiment, options: EngineOptions, cwd: Path) -> Launcher:
    return RayLauncher(chosen_cluster(options.address), cwd, experiment.cluster.place.place_timeout)


def _ssh(experiment: Experiment, options: EngineOptions, cwd: Path) -> Launcher:
    cluster = experiment.cluster
    return SshLauncher(cwd, cluster.place.place_timeout, options.hosts or cluster.hosts)


_ALL_KEYS = frozenset(("servers.cpus", "servers.memory", "servers.spread", "workers.cpus", "workers.gpus"))
ENGINES: Final = {
    engine.name: engine
    for engine in (
        Engine("local", "processes on this machine", lambda experiment, options, cwd: LocalLauncher(cwd)),
        Engine("simulated", "a virtual clock, see [simulation]", None),
        Engine("ray", "actors of a Ray cluster, see --address", _ray, _ALL_KEYS, frozenset(("address",))),
        Engine(
            "slurm",
            "steps of the surrounding allocation",
            _slurm,
            _ALL_KEYS,
        ),
        Engine(
            "ssh",
            "machines that accept a login without a prompt, see --hosts",
            _ssh,
            frozenset(("servers.spread",)),
            frozenset(("hosts",)),
        ),
    )
}


def engine_named(name: str) -> Engine:
    """Return the engine of that name. Raises EngineError."""
    if name not in ENGINES:
        raise EngineError(f'engine "{name}" is unknown{did_you_mean(name, ENGINES)}')
    return ENGINES[name]


def check(engine: Engine, experiment: Experiment, options: EngineOptions) -> None:
    """Refuse demands and options that the engine does not honour. Raises EngineError."""
    for key in experiment.cluster.place.demands:
        if key not in engine.honours:
            able = [each.name for each in ENGINES.values() if key in each.honours]
            instead = f"; {', '.join(able)} can" if able else ""
            raise EngineError(
                f"cluster.place.{key}: engine {engine.name} cannot guarantee a process that{instead}"
            )
    for name in options.__slots__:
        if getattr(options, name) and name not in engine.takes:
            able = [each.name for each in ENGINES.values() if name in each.takes]
            raise EngineError(f"--{name}: expected engine {', '.join(able)}, got engine {engine.name}")


def launcher_for(experiment: Experiment, options: EngineOptions, cwd: Path) -> Launcher:
    """Return a launcher of the experiment's engine. Raises EngineError, also for an engine without processes."""
    engine = engine_named(experiment.run.engine)
    check(engine, experiment, options)
    if engine.make is None:
        raise EngineError(f"engine {engine.name} starts no processes")
    return engine.make(experiment, options, cwd)


def engines_text() -> str:
    """Return names and summaries for --help."""
    return " ".join(f"{engine.name}: {engine.summary}." for engine in ENGINES.values())
