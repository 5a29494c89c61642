"""DiLoCo with groups of rows and overlap, as a dumb twin in one process; and runs of the same training.

The twin works on variables by name, with masks of rows, and knows nothing of servers.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pslab.runs.folder import Run
from pslab.simulator.problems import NumpyTrainer
from pslab.simulator.problems.digits import Mlp
from pslab.simulator.problems.problem import NumpyResult
from pswire.model.plan import Plan, VariableSpec
from pswire.transport.blocks import INT4
from psworker import loop
from tests.links import connect_link
from tests.pswire.test_blocks import block
from tests.replay.simulated import simulate
from tests.service.serving import serving

WORKERS, STEPS, SEED = 2, 3, 3
INNER = {"learning_rate": 0.01, "weight_decay": 0.1, "beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-8}
NESTEROV = {"name": "nesterov", "learning_rate": 0.7, "momentum": 0.9}
# Of a worker, all of one size.
BATCHES = 21
ROUNDS = BATCHES // STEPS
STATE = "averages"

Weights = dict[str, np.ndarray]


class Stateful(NumpyTrainer):
    """A network with three numbers of state, which each batch moves towards facts of its own."""

    def __init__(self) -> None:
        super().__init__(Mlp())

    @property
    def specs(self) -> Any:
        return [*super().specs, (VariableSpec(STATE, (3,), kind="state"), np.ones(3, np.float32))]

    def attach(self, plan: Plan) -> None:
        super().attach(plan)
        self._initial = {**self._initial, STATE: np.ones(3, np.float32)}

    def step(self, flats: Any, batch: Any) -> Any:
        values = self.parameters(flats)
        state = values.pop(STATE)
        gradient = self.problem.gradient(values, batch)
        changes = {**gradient.values, STATE: change_of(state, gradient)}
        squares = sum(float(np.vdot(each, each)) for each in gradient.values.values())
        flats = self._plan.scatter([changes[name] for name in self._initial])
        return NumpyResult(flats, gradient.loss, squares**0.5, gradient.samples)

    def evaluate(self, flats: Any) -> dict[str, float]:
        return {}


def change_of(state: np.ndarray, gradient: Any) -> np.ndarray:
    fact = np.float32([gradient.loss, gradient.samples, next(iter(gradient.values.values())).max()])
    return (fact - state) * np.float32(0.1)


def twin(wire: str, fragments: int, overlap: int = 0, mixing: float = 0.0, *, state: bool = False) -> Weights:
    """Train in one process, and return the last version."""
    problem = Mlp()
    averages = np.ones(3, np.float32)
    weights = {name: values.copy() for name, values in problem.initial().items()}
    masks = masks_of(weights, fragments)
    velocity = {name: np.zeros_like(values) for name, values in weights.items()}
    # The servers' own, where workers get coded changes of what the servers publish.
    up, _, down = wire.partition("/")
    exact = {name: values.copy() for name, values in weights.items()}
    workers = [TwinWorker(problem, worker, weights, up, overlap, mixing) for worker in range(WORKERS)]
    rate, momentum, mean = np.float32(0.7), np.float32(0.9), np.float32(1 / WORKERS)
    for version in range(ROUNDS):
        mask, former = masks[version % fragments], masks[(version - 1) % fragments]
        sent = [worker.round(weights, mask, former, averages) for worker in workers]
        averages = averages + sum(worker.moved for worker in workers) * mean
        for name, values in weights.items():
            total = sent[0][name]
            for other in sent[1:]:
                total = total + other[name]
            g, here = total * mean, mask[name]
            moved = velocity[name] * momentum - g * rate
            velocity[name] = np.where(here, moved, velocity[name])
            start = exact[name] if down else values
            exact[name] = np.where(here, start + (moved * momentum - g * rate), start)
            weights[name] = published(exact[name], values, here) if down else exact[name]
    return {**weights, STATE: averages} if state else weights


def published(exact: np.ndarray, before: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the version that the coded change makes of the one before, in one group."""
    if not wide(exact):
        return np.where(mask, exact, before)
    found = before.copy()
    for row in np.flatnonzero(mask[:, 0]):
        found[row] = before[row] + coded(exact[row] - before[row])
    return found


def wide(values: np.ndarray) -> bool:
    return values.ndim > 1 and values.shape[1] >= 32


def coded(row: np.ndarray) -> np.ndarray:
    return np.concatenate([block(INT4, row[at : at + 64])[1] for at in range(0, row.size, 64)])


def masks_of(weights: Weights, fragments: int) -> list[Weights]:
    """Deal the rows of each variable in turn; the group with the fewest elements begins."""
    masks = [
        {name: np.zeros(values.shape, bool) for name, values in weights.items()} for _ in range(fragments)
    ]
    loads = [0] * fragments
    for name, values in weights.items():
        order = sorted(range(fragments), key=lambda group: loads[group])
        for row in range(len(values)):
            group = order[row % fragments]
            masks[group][name][row] = True
            loads[group] += values[row].size
    return masks


class TwinWorker:
    def __init__(
        self, problem: Any, index: int, weights: Weights, wire: str, overlap: int, mixing: float
    ) -> None:
        self.problem, self.wire, self.steps, self.rounds = problem, wire, 0, 0
        self.overlap, self.mixing = overlap, mixing
        self.batches = problem.batches(index, WORKERS, SEED, 0)
        self.own = {name: values.copy() for name, values in weights.items()}
        # Averages of its own, and what the last round did to them.
        self.averages = self.moved = np.zeros(3, np.float32)
        self.m, self.v, self.residual = (
            {name: np.zeros_like(values) for name, values in weights.items()} for _ in range(3)
        )

    def round(self, pulled: Weights, mask: Weights, former: Weights, averages: np.ndarray) -> Weights:
        """Return what arrives: zero outside of the group. The first round begins at the pulled weights."""
        ahead = self.overlap if self.rounds else 0
        self.rounds += 1
        for _ in range(ahead):
            self.step(self.problem.gradient(self.own, next(self.batches)))
        if self.rounds == 1:
            self.averages = averages
        else:
            for name, values in pulled.items():
                self.own[name] = np.where(former[name], self.mixed(self.own[name], values), self.own[name])
            self.averages = self.mixed(self.averages, averages)
        for _ in range(STEPS - ahead):
            self.step(self.problem.gradient(self.own, next(self.batches)))
        self.moved = self.averages - averages
        moved = {name: np.where(mask[name], pulled[name] - self.own[name], 0) for name in pulled}
        return moved if self.wire == "float32" else {n: self.coded(n, g, mask[n]) for n, g in moved.items()}

    def mixed(self, own: np.ndarray, pulled: np.ndarray) -> np.ndarray:
        alpha, rest = np.float32(self.mixing), np.float32(1 - self.mixing)
        return alpha * own + rest * pulled if self.mixing else pulled

    def step(self, gradient: Any) -> None:
        self.steps += 1
        self.averages = self.averages + change_of(self.averages, gradient)
        f = np.float32
        corrected = (1 - INNER["beta_2"] ** self.steps) ** 0.5 / (1 - INNER["beta_1"] ** self.steps)
        for name, g in gradient.values.items():
            x, m, v = self.own[name], self.m[name], self.v[name]
            x = x - x * f(INNER["weight_decay"]) * f(INNER["learning_rate"])
            m += (g - m) * f(1 - INNER["beta_1"])
            v += (g * g - v) * f(1 - INNER["beta_2"])
            self.own[name] = x - m * f(INNER["learning_rate"] * corrected) / (
                np.sqrt(v) + f(INNER["epsilon"])
            )

    def coded(self, name: str, payload: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Encode each row of the group in int4, if it has 32 elements, with what it left out last time."""
        if not wide(payload):
            return payload
        arrived = payload.copy()
        for row in np.flatnonzero(mask[:, 0]):
            wanted = payload[row] + self.residual[name][row]
            arrived[row] = coded(wanted)
            self.residual[name][row] = wanted - arrived[row]
        return arrived


# Runs


def knobs_of(fragments: int, overlap: int, mixing: float) -> dict[str, Any]:
    return {"steps": STEPS, "fragments": fragments, "overlap": overlap, "mixing": mixing, **INNER}


def simulated(
    out: Path,
    wire: str,
    fragments: int,
    servers: int,
    overlap: int = 0,
    mixing: float = 0.0,
    **sections: Any,
) -> Run:
    return simulate(
        out,
        "diloco",
        knobs_of(fragments, overlap, mixing),
        cluster={"servers": servers, "workers": WORKERS, "wire_dtype": wire, "worker_timeout": 60.0},
        optimizer=NESTEROV,
        run={"seed": SEED, "versions": ROUNDS},
        **{"simulation": {"problem": "mlp"}, **sections},
    )


def trained(
    out: Path,
    wire: str,
    fragments: int,
    servers: int,
    transport: str,
    overlap: int = 0,
    mixing: float = 0.0,
    trainer_of: Callable[[], NumpyTrainer] = lambda: NumpyTrainer(Mlp()),
) -> Run:
    """Train with real servers, and workers on threads of this process."""
    knobs = knobs_of(fragments, overlap, mixing)
    overrides = [*(f"policy.{knob}={value}" for knob, value in knobs.items()), f"run.versions={ROUNDS}"]
    overrides += [f"optimizer.{knob}={value}" for knob, value in NESTEROV.items()]
    overrides += [f"run.seed={SEED}"]
    options = {"wire_dtype": wire, "transport": transport, "local_rules": True}

    def work(hosts: Any, index: int) -> None:
        trainer = trainer_of()
        with connect_link(hosts, trainer.specs, task_index=index, **options) as session:
            trainer.attach(session.plan)
            loop.train(session, trainer, 1, lambda *_: None)

    with serving(servers, workers=WORKERS, policy="diloco", overrides=overrides, out=out) as cluster:
        threads = [threading.Thread(target=work, args=(cluster.hosts, n)) for n in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return Run(out)
