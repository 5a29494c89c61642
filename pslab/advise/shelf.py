"""The candidates: policies with knobs that fit the cluster, each with several learning rates; and the first choice."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from pslab.compare.halving import RungResult
from pslab.compare.sweep import Cell, cell_name
from pslab.experiment import Experiment
from psserver.optimizers import build as build_optimizer
from psserver.policies import build as build_policy

# Multiples of the experiment's own learning rate.
RATES = (0.3, 1.0, 3.0)
# Contributions between two evaluations of a play.
CONTRIBUTIONS = 10
# How much longer than the fastest a candidate may take and count as equally fast: the error of a simulated pace.
PACE = 0.05


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy with its knobs, and a learning rate. `rank`: its place on the shelf, the simplest first."""

    policy: str
    rate: float
    rank: int
    knobs: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def label(self) -> str:
        """Such as ``bounded (max_staleness=4), rate 0.03``."""
        knobs = ", ".join(f"{name}={value}" for name, value in self.knobs.items())
        return f"{self.policy}{f' ({knobs})' if knobs else ''}, rate {self.rate:g}"

    def experiment(self, base: Experiment) -> Experiment:
        """Return `base` with this policy and rate."""
        tables = base.model_dump()
        tables["policy"] = {"name": self.policy, **self.knobs}
        tables["optimizer"] = {**base.optimizer.config, "learning_rate": self.rate}
        return Experiment.model_validate(tables)

    def cell(self, base: Experiment, seed: int) -> Cell:
        """Return the play under a seed, of the delays and batches that every candidate draws under it."""
        workers = base.cluster.workers
        parts = self.knobs.get("aggregate", workers if self.policy in ("sync", "softsync") else 1)
        played = self.experiment(base)
        simulation = played.simulation.model_copy(update={"evaluate": max(1, CONTRIBUTIONS // int(parts))})
        run = played.run.model_copy(update={"seed": seed})
        settings = [f"{name}={value}" for name, value in self.knobs.items()]
        name = cell_name([f"policy={self.policy}", *settings, f"rate={self.rate:g}", f"run.seed={seed}"])
        return Cell(name, (self.label,), played.model_copy(update={"simulation": simulation, "run": run}))


def settings(workers: int) -> list[tuple[str, dict[str, Any]]]:
    """Return policies and knobs for a number of workers, the simplest first.

    Knobs stand where the policy's rule makes a difference: half the workers, all but one, as many as there are.
    Policies whose workers take steps of their own are left out: their learning rates mean something else.
    """
    half, most = max(1, math.ceil(workers / 2)), max(1, workers - 1)
    found: list[tuple[str, dict[str, Any]]] = [("sync", {}), ("async", {})]
    found += [("sync", {"backup": backup}) for backup in sorted({1, workers // 4}) if 0 < backup < workers]
    found += [("k-sync", {"aggregate": k}) for k in sorted({half, most}) if 1 <= k < workers]
    found += [("deadline-sync", {"rule": "pace"}), ("dbw", {})] if workers > 1 else []
    found += [
        ("bounded", {"aggregate": 1, "max_staleness": bound}) for bound in sorted({workers, 2 * workers})
    ]
    found += [("bounded", {"aggregate": half, "max_staleness": 2})] if half > 1 else []
    found += [("ssp", {"slack": slack}) for slack in (1, 4)]
    found += [("k-async", {"aggregate": half}), ("k-batch-async", {"aggregate": half})] if half > 1 else []
    found += [(name, {"aggregate": workers}) for name in ("k-batch-sync", "rennala")]
    found += [("softsync", {}), ("fedbuff", {"aggregate": max(2, half)}), ("delay-adaptive", {})]
    found += [("ringmaster", {"threshold": workers}), ("dssp", {}), ("dc-asgd", {})]
    return found


def candidates(experiment: Experiment, rates: Sequence[float] = RATES) -> Iterator[Candidate | str]:
    """Yield every candidate, and a sentence for each policy that this experiment cannot run."""
    cluster = experiment.cluster
    optimizer = build_optimizer(experiment.optimizer.config)
    if ":" in experiment.policy.name:
        yield f"{experiment.policy.name}: only built-in policies are tried, so nothing here says how yours compares"
    for rank, (name, knobs) in enumerate(settings(cluster.workers)):
        try:
            build_policy(name, knobs, cluster.workers, cluster.servers)
        except ValueError as error:
            yield f"{name}: {error}"
            continue
        if name == "dc-asgd" and optimizer.name != "sgd":
            yield f"{name}: its correction is derived for sgd, and the optimizer is {optimizer.name}"
            continue
        for factor in rates:
            yield Candidate(name, rounded(experiment.optimizer.learning_rate * factor), rank, knobs)


def rounded(rate: float) -> float:
    """Round a learning rate to three digits, so that its name is short."""
    return float(f"{rate:.3g}")


def first_choice(results: Mapping[Candidate, Sequence[RungResult]]) -> list[Candidate]:
    """Return the first choice, then those that are as fast: the simplest of those that miss the goal least often, and
    take at most `PACE` longer than the fastest. Empty where no play reached the goal."""
    missed = {each: sum(math.isinf(one.seconds) for one in own) / len(own) for each, own in results.items()}
    able = [each for each in results if missed[each] == min(missed.values()) < 1]
    seconds = {each: seconds_of(results[each]) for each in able}
    return sorted(
        (each for each in able if seconds[each] <= (1 + PACE) * min(seconds.values())),
        key=lambda each: (each.rank, seconds[each]),
    )


def seconds_of(results: Sequence[RungResult]) -> float:
    """Return the mean seconds of the plays that reached the goal. There must be one."""
    return fmean(each.seconds for each in results if math.isfinite(each.seconds))
