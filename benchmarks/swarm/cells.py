"""One measurement: servers with a policy, so many light workers, a burst; and what it cost the servers."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.loads import Load, even
from benchmarks.peers.child import Child, ChildError
from benchmarks.peers.ours import start_servers

Say = Callable[[str], None]

# Policy -> its knobs for so many workers.
POLICIES: Mapping[str, Callable[[int], Mapping[str, object]]] = {
    "async": lambda workers: {},
    "sync": lambda workers: {},
    "ssp": lambda workers: {"slack": 3},
    # With n workers the usual staleness is n - 1.
    "bounded": lambda workers: {"max_staleness": 2 * workers},
    # Cancelled tickets would measure how streams are opened again.
    "k-sync": lambda workers: {"aggregate": max(1, workers // 2), "late": "drop"},
    # Every worker has a deadline of its own, which does not pass, or it would be cancelled.
    "deadline-sync": lambda workers: {"rule": "pace", "least": 60.0, "most": 600.0},
    "fedbuff": lambda workers: {"aggregate": max(1, workers // 10)},
    "fedbuff-timeout": lambda workers: {"aggregate": max(1, workers // 10), "timeout": 60.0},
}
# How often the progress of a long beginning is told; seconds.
TOLD = 5.0


@dataclass(frozen=True)
class Cell:
    """So many workers, as fast as they can."""

    policy: str
    sessions: int
    servers: int

    @property
    def name(self) -> str:
        many = "" if self.servers == 1 else f", {self.servers} servers"
        return f"{self.policy}, {self.sessions} sessions{many}"


@dataclass
class Measured:
    """`burst`: what the generator counted. `rss`: bytes of all servers at its end. `failure`: why there is neither."""

    cell: Cell
    burst: dict[str, Any] = field(default_factory=dict)
    rss: int = 0
    joined_in: float = 0.0
    failure: str = ""

    @property
    def rate(self) -> float | None:
        """Commits per second of all workers."""
        return self.burst["commits"] / self.burst["seconds"] if self.burst else None

    @property
    def server_ms(self) -> float | None:
        """CPU milliseconds of all servers per commit."""
        return 1e3 * self.burst["server_cpu"] / self.burst["commits"] if self.burst.get("commits") else None

    @property
    def generator_ms(self) -> float | None:
        """CPU milliseconds of the generator per commit."""
        return 1e3 * self.burst["cpu"] / self.burst["commits"] if self.burst.get("commits") else None

    def as_json(self) -> dict[str, Any]:
        derived = {
            "commits_per_second": self.rate,
            "server_cpu_ms_per_commit": self.server_ms,
            "generator_cpu_ms_per_commit": self.generator_ms,
        }
        return {**asdict(self), **derived}


@dataclass(frozen=True)
class Terms:
    """What all cells have in common. `patience`: seconds until all workers must have joined."""

    seconds: float
    nbytes: int
    patience: float
    logs: Path
    say: Say


def measure(cell: Cell, terms: Terms) -> Measured:
    """The cell. Leaves no process behind. What goes wrong is in the result: other cells may do better."""
    label = f"{cell.policy}-{cell.sessions}-{cell.servers}"

    def start() -> tuple[list[Child], dict[str, Any]]:
        servers, hosts = _servers(cell, terms, label)
        return servers, {"do": "join", "hosts": hosts}

    return _measured(cell, terms, label, start)


def bare_echo(sessions: int, terms: Terms) -> Measured:
    """What the same workers cost a bare gRPC echo, which decides nothing."""

    def start() -> tuple[list[Child], dict[str, Any]]:
        echo = Child("echo", ["-m", "benchmarks.swarm.echo", str(terms.nbytes)], terms.logs / "echo.log")
        try:
            return [echo], {"do": "echo", "port": echo.receive()["port"]}
        except ChildError:
            echo.close(patience=0.0)
            raise

    return _measured(Cell("echo", sessions, 1), terms, "echo", start)


def _measured(
    cell: Cell, terms: Terms, label: str, start: Callable[[], tuple[list[Child], dict[str, Any]]]
) -> Measured:
    """`start`: starts what is measured, and returns it with the command that leads the workers there."""
    made, servers = Measured(cell), list[Child]()
    program = ["-m", "benchmarks.swarm.generator"]
    generator = Child("generator", program, terms.logs / f"{label}-generator.log")
    try:
        servers, command = start()
        begin = time.monotonic()
        generator.ask(**command, sessions=cell.sessions, nbytes=terms.nbytes)
        _wait(generator, cell.sessions, terms, cell.name)
        made.joined_in = time.monotonic() - begin
        _burst(made, generator, [psutil.Process(child.pid) for child in servers], terms)
    except (ChildError, TimeoutError, psutil.NoSuchProcess) as error:
        made.failure = str(error)
    finally:
        for child in (generator, *servers):
            child.close(patience=0.0)
    return made


def _servers(cell: Cell, terms: Terms, label: str) -> tuple[list[Child], str]:
    knobs = POLICIES[cell.policy](cell.sessions)
    options = ["--policy", cell.policy, "--ticket-timeout", "0", "--transport", "auto"]
    options += [f"--set=policy.{name}={json.dumps(value)}" for name, value in knobs.items()]
    load = Load(
        cell.name,
        even(terms.nbytes / 1e6, 4),
        workers=cell.sessions,
        servers=cell.servers,
    )
    return start_servers(label, load, options, terms.logs, out=terms.logs / label)


def _wait(generator: Child, sessions: int, terms: Terms, name: str) -> None:
    """Until every worker holds its first ticket. Raises TimeoutError."""
    begin = told = time.monotonic()
    while True:
        state = generator.ask("prepared")
        if state["lost"]:
            raise TimeoutError(
                f"{state['lost']} of {sessions} workers were lost at the start: {state['losses']}"
            )
        if state["done"] and not state["waiting"]:
            return
        now = time.monotonic()
        if now - begin > terms.patience:
            raise TimeoutError(
                f"after {terms.patience:g} s {state['joined']} of {sessions} workers had joined, and "
                f"{state['waiting']} of them waited for their first ticket"
            )
        if now - told > TOLD:
            told = now
            terms.say(f"{name}: {state['joined']} workers have joined")
        time.sleep(0.05)


def _burst(made: Measured, generator: Child, watched: list[psutil.Process], terms: Terms) -> None:
    terms.say(f"{made.cell.name}: {terms.seconds:g} s")
    pids = [each.pid for each in watched]
    made.burst = generator.ask("measure", seconds=terms.seconds, servers=pids)
    made.rss = sum(each.memory_info().rss for each in watched)
