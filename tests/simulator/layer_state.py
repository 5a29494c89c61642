"""State that every batch moves, on simulated workers under any policy, and its table.

    python -m tests.simulator.layer_state [POLICY ...]

prints the largest and the last value of an average under these policies, by default all, in Markdown.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pslab.simulator.problems import NumpyTrainer
from pslab.simulator.problems.problem import Gradient, NumpyResult
from psserver.policies import PolicyError, names
from pswire.model.plan import VariableSpec
from tests.simulator.lab import Outcome, experiment, simulate
from tests.simulator.test_learning import weights

STATE = "average"
# Of what batches measure; the average begins at 0.
MEAN, SPREAD = 1.0, 0.5
WORKERS = (2, 8, 32)
RATES = (0.01, 0.1, 0.3, 1.0)
BATCHES = 40


class Flat:
    """Nothing to learn; a batch is a number that an average follows. `means`: by worker, in turn."""

    def __init__(self, batches: int, means: Sequence[float], spread: float) -> None:
        self.count, self.means, self.spread = batches, means, spread

    def initial(self) -> Mapping[str, Any]:
        return {"w": np.zeros(4, np.float32)}

    def batches(self, worker: int, workers: int, seed: int, epoch: int) -> Iterator[Any]:
        rng = np.random.default_rng([seed, worker, epoch])
        mean = self.means[worker % len(self.means)]
        yield from (np.float32(mean + self.spread * each) for each in rng.uniform(-1, 1, self.count))

    def gradient(self, parameters: Mapping[str, Any], batch: Any) -> Gradient:
        return Gradient({"w": np.zeros(4, np.float32)}, 0.0, 1)

    def evaluate(self, parameters: Mapping[str, Any]) -> dict[str, float]:
        return {}


class Averaging(NumpyTrainer):
    """Each batch moves the average by `rate` of its distance: all the way for 1, as a step that sets a state.

    `seen`: the least and the greatest number that a worker has met, as state or in a batch; `largest`: the greatest
    magnitude of state that a worker was given.
    """

    def __init__(
        self, rate: float, batches: int, means: Sequence[float] = (MEAN,), spread: float = SPREAD
    ) -> None:
        super().__init__(Flat(batches, means, spread))
        self._initial[STATE] = np.zeros(1, np.float32)
        self.rate, self.seen, self.largest = np.float32(rate), (0.0, 0.0), 0.0

    @property
    def specs(self) -> Any:
        kinds = {STATE: "state"}
        made = super().specs
        return [(VariableSpec(v.name, v.shape, kind=kinds.get(v.name, "trainable")), x) for v, x in made]

    def step(self, flats: Any, batch: Any) -> Any:
        state = self.parameters(flats)[STATE]
        with np.errstate(all="ignore"):
            change = (batch - state) * self.rate
        self.largest = max(self.largest, abs(float(state[0])))
        self.seen = min(self.seen[0], float(batch)), max(self.seen[1], float(batch))
        assert self._plan is not None
        return NumpyResult(self._plan.scatter([np.zeros(4, np.float32), change]), 0.0, 0.0, 1)

    def evaluate(self, flats: Any) -> dict[str, float]:
        return {}


def run(
    policy: str, workers: int, trainer: Averaging, compute: str = "exponential(1)", **more: Any
) -> Outcome:
    """Train, by default with steps of random length."""
    optimizer = {"name": "sgd", "learning_rate": 1.0}
    return simulate(
        experiment(
            policy,
            workers=workers,
            job={"module": "none:none"},
            simulation={"problem": "job", "compute": compute},
            optimizer=optimizer,
            **more,
        ),
        lambda _: trainer,
    )


def last(outcome: Outcome) -> float:
    return float(weights(outcome)[STATE][0])


def cell(policy: str, workers: int, rate: float) -> str:
    """The largest and the last average, with workers of equal speed and `BATCHES` for each."""
    trainer = Averaging(rate, BATCHES)
    try:
        final = last(run(policy, workers, trainer, compute="constant(1)"))
    except PolicyError:
        return "-"
    return f"{max(trainer.largest, abs(final)):.3g} / {final:.3g}"


def main() -> None:
    """Print the table."""
    heads = [f"{n}, {a:g}" for n in WORKERS for a in RATES]
    print(f"| policy | {' | '.join(heads)} |", f"|{'---|' * (len(heads) + 1)}", sep="\n")
    for policy in sys.argv[1:] or names():
        found = [cell(policy, n, a) for n in WORKERS for a in RATES]
        print(f"| `{policy}` | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
