"""The candidates of the advisor: policies with knobs that fit the cluster, each with several learning rates."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pslab.experiment import Experiment
from psserver.optimizers import build as build_optimizer
from psserver.policies import build as build_policy

# Multiples of the experiment's own learning rate.
RATES = (0.3, 1.0, 3.0)


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

    @property
    def baseline(self) -> bool:
        """Whether it is plain `sync`, which everything is held against."""
        return self.policy == "sync" and not self.knobs

    def experiment(self, base: Experiment) -> Experiment:
        """Return `base` with this policy and rate."""
        tables = base.model_dump()
        tables["policy"] = {"name": self.policy, **self.knobs}
        tables["optimizer"] = {**base.optimizer.config, "learning_rate": self.rate}
        return Experiment.model_validate(tables)


def settings(workers: int) -> list[tuple[str, dict[str, Any]]]:
    """Return policies and knobs for a number of workers, the simplest first.

    Knobs stand where the policy's rule makes a difference: half the workers, all but one, as many as there are.
    Policies whose workers take steps of their own are left out: their learning rates mean something else.
    """
    half, most = max(1, math.ceil(workers / 2)), max(1, workers - 1)
    found: list[tuple[str, dict[str, Any]]] = [("sync", {}), ("async", {})]
    found += [("sync", {"backup": backup}) for backup in sorted({1, workers // 4}) if 0 < backup < workers]
    found += [("k-sync", {"aggregate": k}) for k in sorted({half, most}) if 1 <= k < workers]
    found += [("deadline-sync", {"rule": "quantile"}), ("dbw", {})] if workers > 1 else []
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
            policy = build_policy(name, knobs, cluster.workers, cluster.servers)
            optimizer.check_aggregator(policy.tensors.aggregator)
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
