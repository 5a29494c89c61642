"""The five clusters: how long a step of each worker takes, the link, and how often a worker is killed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pswire.config.experiment import Experiment, parse_experiment

PROBLEM = "benchmarks.advisor.problem:Clusters"
WORKERS, RATE, GOAL = 4, 0.3, 0.92
# Epochs of 64 batches of each worker: more than a run needs.
EPOCHS = 60
# float32 values more, where the link counts.
PADDING = 40_000


@dataclass(frozen=True, slots=True)
class Shape:
    """`step`: a distribution of seconds; `factors`: of single workers. `link`: a rate as tc writes it, or empty.
    `kill_every`: seconds between two kills; 0: none."""

    name: str
    step: str = "gamma(100, 0.0005)"
    factors: Mapping[int, float] = field(default_factory=dict)
    link: str = ""
    kill_every: float = 0.0

    def of_worker(self, number: int) -> str:
        """Return the distribution of one worker's steps."""
        factor = self.factors.get(number, 1.0)
        return self.step if factor == 1.0 else f"{factor:g} * {self.step}"

    @property
    def options(self) -> dict[str, Any]:
        """Options of the problem."""
        return {"padding": PADDING} if self.link else {}

    def experiment(self, policy: Mapping[str, Any], rate: float, seed: int, versions: int = 0) -> Experiment:
        """Return what the servers and the run folder are given. It does not have the times of steps."""
        document = {
            "run": {"name": f"advisor-{self.name}", "seed": seed, "versions": versions},
            "cluster": {"workers": WORKERS},
            "policy": dict(policy),
            "optimizer": {"name": "sgd", "learning_rate": rate},
            "job": {"epochs": EPOCHS},
            "simulation": {"problem": PROBLEM, "options": self.options},
        }
        return parse_experiment(document, self.name)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("even"),
        Shape("straggler", factors={3: 3.0}),
        Shape("tail", step="pareto(2, 0.025)"),
        Shape("link", link="100mbit"),
        Shape("crashes", kill_every=2.0),
    )
}
