"""The engines by name: what each is, what it needs, and what it can promise a process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pslab.launch.engines.launcher import EngineError, Launcher
from pslab.launch.engines.local import LocalLauncher
from pswire.config.experiment import Experiment
from pswire.nearest import did_you_mean


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says for one engine; empty: nothing."""

    # Of ssh: machines, as cluster.hosts.
    hosts: tuple[str, ...] = ()
    # Of ray: the cluster that there is, or the number of nodes of one for this run.
    address: str = ""
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a launcher is made of. `cwd`: where the processes run, and so where a job module's path begins."""

    experiment: Experiment
    options: Options
    cwd: Path


@dataclass(frozen=True, slots=True)
class Engine:
    """One row. `make` raises EngineError where something is missing; None: no processes, a virtual clock.

    `honours`: keys of [cluster.place] that it can keep to. `takes`: names of `Options` that mean something to it.
    """

    name: str
    summary: str
    make: Callable[[Setting], Launcher] | None
    honours: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()


def _local(setting: Setting) -> Launcher:
    return LocalLauncher(setting.cwd)


def _slurm(setting: Setting) -> Launcher:
    from pslab.launch.engines.slurm import SlurmLauncher, allocation

    return SlurmLauncher(setting.cwd, setting.experiment.cluster.place.place_timeout, allocation())


def _ray(setting: Setting) -> Launcher:
    from pslab.launch.engines.ray.launcher import RayLauncher
    from pslab.launch.engines.ray.options import chosen

    options = chosen(setting.options.address, setting.options.nodes)
    return RayLauncher(options, setting.cwd, setting.experiment.cluster.place.place_timeout)


def _ssh(setting: Setting) -> Launcher:
    from pslab.launch.engines.ssh import SshLauncher

    cluster = setting.experiment.cluster
    return SshLauncher(setting.cwd, cluster.place.place_timeout, setting.options.hosts or cluster.hosts)


ENGINES: Final = {
    engine.name: engine
    for engine in (
        Engine("local", "processes on this machine", _local),
        Engine("simulated", "a virtual clock, see [simulation]", None),
        Engine(
            "ray",
            "actors of a Ray cluster, see --address and --nodes",
            _ray,
            honours=frozenset(
                ("servers.cpus", "servers.memory", "servers.spread", "workers.cpus", "workers.gpus")
            ),
            takes=frozenset(("address", "nodes")),
        ),
        Engine(
            "slurm",
            "steps of the allocation around it, or with --submit a batch job",
            _slurm,
            honours=frozenset(
                ("servers.cpus", "servers.memory", "servers.spread", "workers.cpus", "workers.gpus")
            ),
        ),
        Engine(
            "ssh",
            "machines that take a login without a question, see --hosts",
            _ssh,
            honours=frozenset(("servers.spread",)),
            takes=frozenset(("hosts",)),
        ),
    )
}


def engine_named(name: str) -> Engine:
    """Raises EngineError."""
    if name not in ENGINES:
        raise EngineError(f'engine "{name}" is unknown{did_you_mean(name, ENGINES)}')
    return ENGINES[name]


def check(engine: Engine, experiment: Experiment, options: Options) -> None:
    """Refuses what the engine would not do. Raises EngineError."""
    for key in experiment.cluster.place.demands:
        if key not in engine.honours:
            able = [each.name for each in ENGINES.values() if key in each.honours]
            instead = f"; {', '.join(able)} can" if able else ""
            raise EngineError(
                f"cluster.place.{key}: engine {engine.name} cannot promise a process that{instead}"
            )
    for name in options.__slots__:
        if getattr(options, name) and name not in engine.takes:
            able = [each.name for each in ENGINES.values() if name in each.takes]
            raise EngineError(f"--{name}: is for engine {', '.join(able)}, got engine {engine.name}")


def launcher_for(setting: Setting) -> Launcher:
    """Of the experiment's engine, which is one with processes. Raises EngineError."""
    engine = engine_named(setting.experiment.run.engine)
    check(engine, setting.experiment, setting.options)
    if engine.make is None:
        raise EngineError(f"engine {engine.name} starts no processes")
    return engine.make(setting)


def engines_text() -> str:
    """For --help: each name and what it is."""
    return " ".join(f"{engine.name}: {engine.summary}." for engine in ENGINES.values())
