"""Real runs of a shape: one that is advised on, then the advice's choices and baselines in turn."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.advisor.shapes import EPOCHS, GOAL, RATE, WORKERS, Shape
from benchmarks.advisor.worker import CONTRIBUTIONS
from benchmarks.links.network import Network
from benchmarks.measures.rounds import rotated
from benchmarks.peers.child import HERE, ROOT, Child, ChildError, Place
from pslab.advise.advisor import PLAYS
from pslab.compare.groups import Goals, measured
from pslab.runs.folder import EXPERIMENT, SUMMARY, Run
from pswire.config.experiment import Experiment

SEEDS = (101, 102, 103, 104, 105)
# Of the run that is advised on.
SOURCE_SEED, SOURCE_VERSIONS = 1, 300
# Seconds after which a run that has not reached the goal ends, and counts as.
LIMIT = 60.0
RESULTS = "results.jsonl"
Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy with knobs and a learning rate. `roles`: why it is measured, such as "first" or "sync"."""

    policy: str
    knobs: Mapping[str, Any]
    rate: float
    roles: tuple[str, ...] = field(default=(), compare=False)

    @property
    def label(self) -> str:
        knobs = ", ".join(f"{name}={value}" for name, value in self.knobs.items())
        return f"{self.policy}{f' ({knobs})' if knobs else ''}, rate {self.rate:g}"

    @property
    def every(self) -> int:
        """Versions between two evaluations, as in the advisor's plays."""
        usual = WORKERS if self.policy in ("sync", "softsync") else 1
        return max(1, CONTRIBUTIONS // int(self.knobs.get("aggregate", usual)))


class Cluster:
    """Worker processes of a shape, which one server after the other uses; a context manager."""

    def __init__(self, shape: Shape, logs: Path) -> None:
        self._shape, self._logs = shape, logs
        self._stack = ExitStack()
        self._places = [HERE] * (WORKERS + 1)
        self._workers: dict[int, Child] = {}

    def __enter__(self) -> Self:
        if self._shape.link:
            network = self._stack.enter_context(Network(WORKERS + 1, self._shape.link))
            self._places = [host.place for host in network.hosts]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.close(patience=0.0)
        self._stack.close()

    def run(self, experiment: Experiment, folder: Path, goal: float, every: int) -> Run:
        """Train for real into `folder`. Raises ChildError."""
        folder.mkdir(parents=True)
        (folder / EXPERIMENT).write_text(experiment.to_toml(), encoding="utf-8")
        server = self._server(folder, self._places[0])
        try:
            while (said := server.receive()).get("event") != "ready":
                pass
            command = {
                "hosts": said["address"],
                # Namespaces of one machine could share memory, past the link.
                "transport": "socket" if self._shape.link else "auto",
                "seed": experiment.run.seed,
                "problem": self._shape.options,
                "epochs": EPOCHS,
                "goal": goal,
                "every": every,
                "limit": LIMIT,
            }
            self._train(command)
            server.leave()
        except BaseException:
            server.close(patience=0.0)
            raise
        return Run(folder)

    def _server(self, folder: Path, place: Place) -> Child:
        arguments = ["-m", "psserver", "--ps-hosts", f"{place.address}:0", "--task-index", "0"]
        arguments += ["--config", str(folder / EXPERIMENT), "--out", str(folder)]
        arguments += ["--json", "--parent", str(os.getpid())]
        if place is not HERE:
            arguments += ["--bind", place.address, "--insecure"]
        return Child("server", arguments, self._logs / "server.log", place=place)

    def _start(self, number: int, command: Mapping[str, Any]) -> None:
        if number not in self._workers:
            name, place = f"worker-{number}", self._places[number + 1]
            arguments = ["-m", "benchmarks.advisor.worker"]
            self._workers[number] = Child(name, arguments, self._logs / f"{name}.log", place=place)
        self._workers[number].send("run", index=number, step=self._shape.of_worker(number), **command)

    def _train(self, command: Mapping[str, Any]) -> None:
        for number in range(WORKERS):
            self._start(number, command)
        over = threading.Event()
        killer = threading.Thread(target=self._kill, args=(command, over), daemon=True)
        if self._shape.kill_every:
            killer.start()
        try:
            self._workers[0].receive(patience=LIMIT + 120)
        finally:
            over.set()
            if self._shape.kill_every:
                killer.join()
        for number in range(1, WORKERS):
            try:
                self._workers[number].receive(patience=20.0)
            except ChildError:
                # It was killed or started again as the job ended.
                self._workers.pop(number).close(patience=0.0)

    def _kill(self, command: Mapping[str, Any], over: threading.Event) -> None:
        """Kill workers 1, 2, ... in turn, and start each again at once."""
        turn = 0
        while not over.wait(self._shape.kill_every):
            number = 1 + turn % (WORKERS - 1)
            turn += 1
            killed = self._workers.pop(number)
            with suppress(ProcessLookupError):
                os.kill(killed.pid, signal.SIGKILL)
            killed.close(patience=0.0)
            self._start(number, command)


# One shape


class ShapeMeasurement:
    """A shape's folder: the run that is advised on, the advice, and results, all kept."""

    def __init__(self, shape: Shape, folder: Path, say: Say) -> None:
        self.shape, self.folder, self._say = shape, folder, say
        folder.mkdir(parents=True, exist_ok=True)

    def measure(self) -> None:
        """Do what is not done yet. Raises ChildError."""
        with Cluster(self.shape, self.folder / "logs") as cluster:
            source = self.folder / "source"
            if not (source / SUMMARY).is_file():
                self._say(f"{self.shape.name}: the run that is advised on")
                _remove(source)
                experiment = self.shape.experiment({"name": "sync"}, RATE, SOURCE_SEED, SOURCE_VERSIONS)
                cluster.run(experiment, source, goal=0.0, every=1)
            self._advise(source)
            for seed, choice in self._left():
                result = self._once(cluster, choice, seed)
                with (self.folder / RESULTS).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")

    def _advise(self, source: Path) -> None:
        file = self.folder / "advice.json"
        if file.is_file():
            return
        self._say(f"{self.shape.name}: advising")
        command = [sys.executable, "-m", "pslab", "advise", str(source), "--goal", f"accuracy={GOAL:g}"]
        command += ["--out", str(self.folder / "advice"), "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ChildError(f"{self.shape.name}: ps-lab advise ended with {done.returncode}:\n{done.stderr}")
        file.write_text(done.stdout.splitlines()[-1], encoding="utf-8")

    @property
    def advice(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "advice.json").read_text(encoding="utf-8"))
        return found

    def results(self) -> list[dict[str, Any]]:
        file = self.folder / RESULTS
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        return [json.loads(line) for line in lines]

    def choices(self) -> list[Choice]:
        """Return what is measured, each once with all its roles."""
        found: dict[str, Choice] = {}
        for role, choice in self._roles():
            known = found.get(choice.label)
            roles = (*(known.roles if known else ()), role)
            found[choice.label] = Choice(choice.policy, choice.knobs, choice.rate, roles)
        return list(found.values())

    def _roles(self) -> Iterator[tuple[str, Choice]]:
        taken = []
        for role, each in zip(("first", "second", "third"), self.advice["choices"], strict=False):
            policy = dict(each["policy"])
            taken.append(Choice(policy.pop("name"), policy, each["learning_rate"]))
            yield role, taken[-1]
        best = best_rates((self.folder / "advice" / PLAYS).read_text(encoding="utf-8"))
        for role, name, knobs in (
            ("sync", "sync", {}),
            ("async", "async", {}),
            ("m-sync", "k-sync", {"aggregate": 2}),
            ("m-sync", "k-sync", {"aggregate": 3}),
        ):
            taken.append(next(each for each in best if (each.policy, each.knobs) == (name, knobs)))
            yield role, taken[-1]
        settings = [(each.policy, each.knobs) for each in taken]
        others = [each for each in best if (each.policy, each.knobs) not in settings]
        yield "control", random.Random(self.shape.name).choice(others)

    def _left(self) -> Iterator[tuple[int, Choice]]:
        done = {(result["choice"], result["seed"]) for result in self.results()}
        for turn, seed in enumerate(SEEDS):
            for choice in rotated(self.choices(), turn):
                if (choice.label, seed) not in done:
                    yield seed, choice

    def _once(self, cluster: Cluster, choice: Choice, seed: int) -> dict[str, Any]:
        folder = self.folder / "run"
        _remove(folder)
        policy = {"name": choice.policy, **choice.knobs}
        experiment = self.shape.experiment(policy, choice.rate, seed)
        run = cluster.run(experiment, folder, GOAL, choice.every)
        found = measured(run, Goals(accuracy=GOAL)).measures.values
        seconds = found["seconds_to_accuracy"]
        reached = math.isfinite(seconds) and seconds <= LIMIT
        self._say(f"{self.shape.name}: {choice.label}, seed {seed}: {seconds:.3g} s")
        return {
            "choice": choice.label,
            "seed": seed,
            "seconds": round(seconds, 4) if reached else LIMIT,
            "reached": reached,
            "versions": int(found["versions"]),
            "seconds_per_version": round(found["seconds_per_version"], 6),
            "staleness": round(found["mean_staleness"], 4)
            if math.isfinite(found["mean_staleness"])
            else None,
        }


def best_rates(plays: str) -> list[Choice]:
    """Return each policy and knobs that was tried, with the rate that served it best, from the advisor's file."""
    kept: dict[tuple[str, str], dict[float, list[dict[str, Any]]]] = {}
    for line in plays.splitlines()[1:]:
        record = json.loads(line)
        name, rest = record["candidate"].split(" ", 1)
        knobs, rate = rest.rsplit(" ", 1)
        kept.setdefault((name, knobs), {}).setdefault(float(rate), []).append(record)
    return [
        Choice(name, json.loads(knobs), min(rates, key=lambda rate: _standing(rates[rate])))
        for (name, knobs), rates in kept.items()
    ]


def _standing(plays: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    arrived = [play["seconds"] for play in plays if play["seconds"] is not None]
    mean = sum(arrived) / len(arrived) if arrived else math.inf
    reached = sum(play["reached"] or 0.0 for play in plays) / len(plays)
    return (-len(arrived) / len(plays), mean, -reached)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
