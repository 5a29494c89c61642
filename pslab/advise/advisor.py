"""The simulations behind advice: every candidate with one seed, then the better half with one seed more, and so on.

Plays are kept in a file, so that advice that was interrupted goes on where it was.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pslab.advise.judge import Judged, Play, judge, standing
from pslab.advise.shelf import Candidate
from pslab.advise.source import CONTRIBUTIONS, AdviceError, Question
from pslab.compare.groups import Goals, measured
from pslab.compare.halving import halving, result_of
from pslab.experiment import Experiment
from pslab.launch.simulated import SharedTrainers, run_simulated
from pslab.runs.folder import Run
from pswire.exits import ExitCode

# A play ends at this multiple of the shortest time to the goal under its seed: it cannot be first any more. `sync` goes
# on, for all are held against it.
PATIENCE = 3.0
# Candidates that are played to the last seed, and the best `sync` besides.
FINALISTS = 4
PLAYS = "plays.jsonl"


@dataclass(frozen=True, slots=True)
class Progress:
    """After each play: which seed of how many, how many plays are left at most, and their seconds of the real clock."""

    candidate: Candidate
    seed: int
    seeds: int
    play: Play
    left: int
    seconds_left: float


class Advisor:
    """Plays candidates for one question and goal; `folder` holds the file of plays, and one run at a time."""

    def __init__(
        self,
        question: Question,
        goals: Goals,
        candidates: Sequence[Candidate],
        seeds: int,
        folder: Path,
        say: Callable[[Progress], object],
    ) -> None:
        """Raise AdviceError where `folder` has the plays of another question."""
        self._experiment, self._outages = question.experiment, question.outages
        self._goals, self._folder, self._say = goals, folder, say
        self._seeds = seeds
        self.plays: dict[Candidate, dict[int, Play]] = {candidate: {} for candidate in candidates}
        self.interrupted: ExitCode | None = None
        self._trainers = SharedTrainers()
        self._wall: list[float] = []
        self._file = folder / PLAYS
        self._load()

    def run(self) -> list[Judged]:
        """Play all rungs, and judge. After an interruption judge what there is: see `interrupted`."""
        candidates, left = list(self.plays), list[Candidate]()
        rungs = range(1, self._seeds + 1)
        for seed, left in halving(candidates, rungs, self._standing, FINALISTS, lambda each: each.baseline):
            waiting = [candidate for candidate in left if seed not in self.plays[candidate]]
            for place, candidate in enumerate(waiting):
                play = self._play(candidate, seed)
                if play is None:
                    return judge({each: self.plays[each] for each in candidates if self.plays[each]})
                self._keep(candidate, seed, play)
                still = len(waiting) - place - 1 + self._later(len(left), seed)
                mean = sum(self._wall) / len(self._wall)
                self._say(Progress(candidate, seed, self._seeds, play, still, still * mean))
        return judge({each: self.plays[each] for each in left})

    def _standing(self, candidate: Candidate) -> tuple[float, ...]:
        return standing(candidate, self.plays[candidate].values())

    def _later(self, count: int, rung: int) -> int:
        """Return the plays of the rungs that follow, at most."""
        total = 0
        for _ in range(rung, self._seeds):
            count = min(count, max(FINALISTS, math.ceil(count / 2)) + 1)
            total += count
        return total

    # One play

    def _play(self, candidate: Candidate, seed: int) -> Play | None:
        """Return the play; None where it was interrupted."""
        began = time.monotonic()
        folder = self._folder / "play"
        shutil.rmtree(folder, ignore_errors=True)
        done = run_simulated(
            self._to_be_played(candidate, seed), out=folder, quiet=True, trainers=self._trainers
        )
        code = done.result.verdict.code
        if code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            self.interrupted = ExitCode(code)
            return None
        found = measured(Run(folder), self._goals)
        values, workers = found.values, self._experiment.cluster.workers
        result = result_of(found, self._goals)
        shutil.rmtree(folder)
        self._wall.append(time.monotonic() - began)
        counts = found.run.summary.contributions.values()
        committed, applied = sum(each.committed for each in counts), sum(each.applied for each in counts)
        return Play(
            seconds=result.seconds,
            cost=result.cost,
            wasted=1 - applied / committed if committed else math.nan,
            least_share=values["least_share"] * workers,
        )

    def _to_be_played(self, candidate: Candidate, seed: int) -> Experiment:
        """Every candidate draws the same delays and batches under the same seed."""
        experiment = candidate.experiment(self._experiment)
        simulation: dict[str, Any] = {
            "evaluate": max(1, CONTRIBUTIONS // self._batch(candidate)),
            "record": True,
        }
        if self._goals.accuracy is not None:
            simulation["until_accuracy"] = self._goals.accuracy
        same_seed = [own[seed].seconds for own in self.plays.values() if seed in own]
        best = min(same_seed, default=math.inf)
        if math.isfinite(best) and not candidate.baseline:
            simulation["seconds"] = PATIENCE * best
        run = {"seed": self._experiment.run.seed + seed - 1, "checkpoint_every": "", "engine": "simulated"}
        job = {"evaluate_every": "", "monitor": experiment.job.monitor}
        faults = {"faults": self._outages.faults(seed)} if self._outages.crashes else {}
        return experiment.model_copy(
            update={
                **faults,
                "simulation": experiment.simulation.model_copy(update=simulation),
                "run": experiment.run.model_copy(update=run),
                "job": experiment.job.model_copy(update=job),
                "cluster": experiment.cluster.model_copy(update={"prefetch": False}),
            }
        )

    def _batch(self, candidate: Candidate) -> int:
        """Return about how many contributions make an update."""
        workers = self._experiment.cluster.workers
        return int(
            candidate.knobs.get("aggregate", workers if candidate.policy in ("sync", "softsync") else 1)
        )

    # The file of plays

    def _load(self) -> None:
        header = self._header()
        if not self._file.is_file():
            self._file.write_text(json.dumps(header) + "\n", encoding="utf-8")
            return
        first, *lines = self._file.read_text(encoding="utf-8").splitlines() or [""]
        if not first or json.loads(first) != header:
            raise AdviceError(
                f"{self._file}: has plays of another experiment, goal or version of ps-lab: expected another --out, or "
                "remove that folder"
            )
        known = {_key(candidate): candidate for candidate in self.plays}
        for line in lines:
            record = json.loads(line)
            if record["candidate"] in known:
                self.plays[known[record["candidate"]]][record["seed"]] = Play(**record["play"])

    def _keep(self, candidate: Candidate, seed: int, play: Play) -> None:
        self.plays[candidate][seed] = play
        record = {"candidate": _key(candidate), "seed": seed, "play": asdict(play)}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _header(self) -> Mapping[str, Any]:
        text = f"{self._experiment.to_toml()}{self._outages}".encode()
        goals = {"accuracy": self._goals.accuracy, "training_loss": self._goals.training_loss}
        names = [each.name for each in fields(Play)]
        return {"experiment": hashlib.sha256(text).hexdigest(), "goals": goals, "play": names}


def _key(candidate: Candidate) -> str:
    return f"{candidate.policy} {json.dumps(candidate.knobs, sort_keys=True)} {candidate.rate:g}"
