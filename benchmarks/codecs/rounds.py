"""The command `scripts/bench local-steps`: DiLoCo over a thin link with real processes, beside `sync` with float32.

Rates and bytes are measured between network namespaces. What a number of versions reaches is simulated: the digest
shows that the real run has the simulated one's bits.
"""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.codecs.tasks import NESTEROV, OVERLAPS, ROUND, WORKERS
from benchmarks.links.network import Counters, Network, reason_against
from benchmarks.peers.child import ROOT, Child
from pslab.launch.simulated import run_simulated
from pslab.runs.folder import Run
from pswire.command.options import CONTEXT, number_option
from pswire.config.experiment import parse_experiment

console = Console(width=140)

# A link that shapes nothing here: what the workers could do at best.
FREE = "10gbit"
# Seconds for a child that trains.
PATIENCE = 1200.0


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to train. `batches`: of a worker between two versions; `sections`: of the experiment file."""

    name: str
    wire_dtype: str
    sections: Mapping[str, Mapping[str, Any]]
    batches: int


@dataclass(frozen=True, slots=True)
class Measured:
    """`seconds`: of a version, from the second one on; `sent`, `received`: bytes of frames on the server's link for
    each version, with the initial values, which travel whole, among them."""

    seconds: float
    sent: float
    received: float
    digest: str


_SYNC = {"policy": {"name": "sync"}, "optimizer": {"name": "sgd", "learning_rate": 3.0}}
_DILOCO = {"policy": {"name": "diloco", "steps": ROUND, "learning_rate": 0.001}}
# As many batches of 0.05 s as the round of int4/int4 takes on a link of 0.1 Gbit/s.
_AHEAD = {**_DILOCO["policy"], **OVERLAPS["8 steps ahead"]}
_PLAIN = {"optimizer": {"name": "sgd", "learning_rate": 1.0}}
ARMS = (
    Arm("sync, float32", "float32", _SYNC, 1),
    Arm("diloco, float32", "float32", {**_DILOCO, "optimizer": NESTEROV}, ROUND),
    Arm("diloco, int4/int4", "int4/int4", {**_DILOCO, **_PLAIN}, ROUND),
    Arm("diloco, int4/int4, 8 steps ahead", "int4/int4", {**_DILOCO, **_PLAIN, "policy": _AHEAD}, ROUND),
    Arm("diloco, top-k/int4", "top-k/int4", {**_DILOCO, **_PLAIN}, ROUND),
)


@click.command(context_settings=CONTEXT)
@click.option("--rate", default="100mbit", show_default=True, help="Of every host's link.")
@number_option("--rounds", 2, 4, f"Versions of diloco; a worker takes {ROUND} batches for each.")
@number_option("--versions", 2, 12, "Versions of sync.")
@number_option("--seconds", 0.0, 0.05, "That a batch takes at least.")
@number_option("--goal", 0.0, 0.5, "Excess loss in nats whose time is told.")
@number_option("--horizon", 1, 600, "Batches of a worker that are simulated to reach it.")
@click.option("--arm", "wanted", multiple=True, metavar="TEXT", help="Only ways whose name has this in it.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Default: runs/local-steps-TIME."
)
def main(
    rate: str,
    rounds: int,
    versions: int,
    seconds: float,
    goal: float,
    horizon: int,
    wanted: tuple[str, ...],
    out: Path | None,
) -> None:
    """Train a model of 1M parameters with four workers, each on a host of its own, over free and over thin links.

    A row says how much of the free rate is left, the bytes that a batch moves on the server's link, and the time to a
    loss. Needs root.
    """
    reason = reason_against()
    if reason is not None:
        raise click.ClickException(reason)
    arms = [arm for arm in ARMS if not wanted or any(text in arm.name for text in wanted)]
    if not arms:
        raise click.UsageError(f"expected a part of one of {[arm.name for arm in ARMS]}, got {wanted}")
    folder_of_all = out or ROOT / "runs" / f"local-steps-{datetime.now():%Y%m%d-%H%M%S}"
    found = {}
    for arm in arms:
        count = versions if arm.batches == 1 else rounds
        folder = folder_of_all / arm.name.replace(", ", "-").replace("/", "-")
        free, thin = (measure(arm, each, count, seconds, folder / each) for each in (FREE, rate))
        made = simulated(arm, count * arm.batches, folder / "same")
        same = free.digest == thin.digest == made.summary.weights_sha256
        # Of sync every tenth version: an evaluation takes as long as many of its steps.
        every = 10 if arm.batches == 1 else 1
        needed = versions_to(simulated(arm, horizon, folder / "long", evaluate=every), goal)
        found[arm.name] = {
            "share": free.seconds / thin.seconds,
            "free_seconds": free.seconds,
            "thin_seconds": thin.seconds,
            "bytes_per_batch": (thin.sent + thin.received) / arm.batches,
            "versions_to_goal": needed,
            "seconds_to_goal": None if needed is None else needed * thin.seconds,
            "bytes_to_goal": None if needed is None else needed * (thin.sent + thin.received),
            "same_bits_as_simulated": same,
        }
        console.print_json(json.dumps({arm.name: found[arm.name]}))
    (folder_of_all / "local-steps.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def document(arm: Arm) -> dict[str, dict[str, Any]]:
    """Return what real and simulated runs share of the experiment file."""
    cluster = {"workers": WORKERS, "worker_timeout": 60.0}
    return {
        "run": {"seed": 0},
        "cluster": cluster,
        **{name: dict(each) for name, each in arm.sections.items()},
    }


def simulated(arm: Arm, batches: int, out: Path, evaluate: int = 0) -> Run:
    """Simulate the arm for so many batches of a worker."""
    problem = {"problem": "benchmarks.codecs.markov:MarkovChain", "compute": "constant(0.05)"}
    made = document(arm)
    made["cluster"]["wire_dtype"] = arm.wire_dtype
    made["simulation"] = {**problem, "options": {"seed": 0, "steps": batches}, "evaluate": evaluate}
    experiment = parse_experiment(made, arm.name)
    return Run(run_simulated(experiment, out=out, force=True, quiet=True).folder)


def versions_to(run: Run, goal: float) -> int | None:
    """Return the first version whose excess loss is at most `goal`; None if there is none."""
    lines = (run.path / "metrics.jsonl").read_text("utf-8").splitlines()
    evaluations = [record for record in map(json.loads, lines) if record.get("kind") == "eval"]
    return next((each["version"] for each in evaluations if each["metrics"]["excess"] <= goal), None)


def measure(arm: Arm, rate: str, versions: int, seconds: float, out: Path) -> Measured:
    """Train with real processes, the server and each worker on a host of its own. Raises ChildError, NetworkError."""
    with Network(WORKERS + 1, rate) as network, ExitStack() as stack:
        server_host, *hosts = network.hosts
        address = server_host.place.address
        run = out / "run"
        options = []
        for section, values in document(arm).items():
            for key, value in values.items():
                options += ["--set", f"{section}.{key}={json.dumps(value)}"]
        arguments = ["-m", "psserver", "--ps-hosts", f"{address}:0", "--bind", address, "--insecure"]
        arguments += [*options, "--json", "--out", str(run.resolve())]
        server = Child("server", arguments, out / "server.log", place=server_host.place)
        stack.callback(server.close)
        while (said := server.receive()).get("event") != "ready":
            pass
        before = server_host.counters()
        for index, host in enumerate(hosts):
            steps = versions * arm.batches
            facts = [str(said["address"]), str(index), arm.wire_dtype, "0", str(steps), str(seconds)]
            worker = Child(
                f"w{index}",
                ["-m", "benchmarks.codecs.worker", *facts],
                out / f"w{index}.log",
                {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                place=host.place,
            )
            stack.callback(worker.close)
        while server.receive(PATIENCE).get("event") != "stopped":
            pass
        moved = server_host.counters() - before
        return _measured(Run(run), moved)


def _measured(run: Run, moved: Counters) -> Measured:
    lines = (run.path / "decisions.jsonl").read_text("utf-8").splitlines()
    made = [entry for entry in map(json.loads, lines) if entry["kind"] == "apply"]
    rounds = len(made) - 1
    per = len(made)
    return Measured(
        (made[-1]["t"] - made[0]["t"]) / rounds,
        moved.sent / per,
        moved.received / per,
        run.summary.weights_sha256,
    )
