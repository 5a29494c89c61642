"""DANA-Zero (Hakimi et al. 2019): a velocity per worker on the shard, versions that are the look-ahead."""

from collections.abc import Sequence

import numpy as np
import pytest

from pslab.simulator import build as build_cluster
from pslab.simulator.store import ShardStore
from psserver.optimizers import OptimizerError, build
from psserver.options import Options
from psserver.settings import resolve
from psserver.shard import (
    Admit,
    Apply,
    Discard,
    Dismiss,
    Fold,
    Hold,
    Release,
    Shard,
)
from tests.promises import promise
from tests.shard.reference import Arrays, install, numbers, same_bits, shards_of, stage
from tests.simulator.lab import experiment, simulate

RATE, GAMMA = 0.1, 0.9
DANA: dict[str, object] = {"name": "dana-zero", "learning_rate": RATE, "momentum": GAMMA}
NESTEROV = {**DANA, "name": "nesterov"}
# Who pushes, in order: nobody's turn, one that comes late, one that comes once.
TURNS = [0, 1, 0, 2, 2, 1, 0, 0, 1, 3, 2, 0, 1, 2, 1, 0]


def versions(config: dict[str, object], updates: Sequence[Sequence[int]], servers: int = 1) -> list[Arrays]:
    """After each update, which takes a contribution of each listed worker, weighted to a mean."""
    plan, shards = shards_of(servers, config)
    install(plan, shards, numbers(1))
    found, ticket = [], 1
    for version, workers in enumerate(updates, start=1):
        folds = []
        for worker in workers:
            ticket += 1
            for shard in shards:
                shard.execute(Hold(ticket, version - 1, worker=f"w{worker}"))
            stage(plan, shards, ticket, numbers(100 + ticket))
            folds.append(Fold(ticket, 1.0))
        # Some are folded early, and the rest comes with the update.
        for shard in shards:
            for fold in folds[:-1]:
                shard.execute(fold)
            shard.execute(Apply(version, 1 / len(folds), 1.0, tuple(folds[-1:])))
        # A copy: the shards use their buffers again.
        found.append([x.copy() for x in plan.gather([shard.arena.values(version) for shard in shards])])
    return found


TRAINED = [i for i, spec in enumerate(shards_of(1)[0].variables) if spec.kind == "trainable"]


def printed(turns: Sequence[int]) -> list[list[np.ndarray]]:
    """Algorithm 4 with its N + 1 vectors, in float64: what it sends after each push."""
    y = [x.astype(np.float64) for x in numbers(1)]
    velocity = {worker: [np.zeros_like(x) for x in y] for worker in set(turns)}
    sent = []
    for ticket, worker in enumerate(turns, start=2):
        for index, g in enumerate(numbers(100 + ticket)):
            velocity[worker][index] = GAMMA * velocity[worker][index] + g
            y[index] = y[index] - RATE * velocity[worker][index]
        total = [sum(v[index] for v in velocity.values()) for index in range(len(y))]
        sent.append([x - RATE * GAMMA * v for x, v in zip(y, total, strict=True)])
    return sent


def test_versions_are_what_the_printed_algorithm_sends() -> None:
    ours = versions(DANA, [[worker] for worker in TURNS])
    for mine, theirs in zip(ours, printed(TURNS), strict=True):
        for index in TRAINED:
            np.testing.assert_allclose(mine[index], theirs[index], rtol=1e-4, atol=1e-5)


def test_it_is_dana_slim_whose_workers_keep_the_velocity() -> None:
    """Slim: the worker sends gamma v' + g, and the server takes a plain step."""
    x = [each.copy() for each in numbers(1)]
    velocity = {worker: [np.zeros_like(each) for each in x] for worker in range(4)}
    for ticket, (worker, mine) in enumerate(
        zip(TURNS, versions(DANA, [[w] for w in TURNS]), strict=True), start=2
    ):
        for index, g in enumerate(numbers(100 + ticket)):
            velocity[worker][index] = np.float32(GAMMA) * velocity[worker][index] + g
            x[index] = x[index] - np.float32(RATE) * (np.float32(GAMMA) * velocity[worker][index] + g)
            if index in TRAINED:
                np.testing.assert_allclose(mine[index], x[index], rtol=1e-4, atol=1e-5)


def test_of_one_worker_it_is_nesterov_to_the_bit() -> None:
    ours, plain = (versions(config, [[0]] * 20) for config in (DANA, NESTEROV))
    for mine, theirs in zip(ours, plain, strict=True):
        assert all(same_bits(a, b) for a, b in zip(mine, theirs, strict=True))


def test_several_are_not_one_shared_velocity() -> None:
    ours, shared = (versions(config, [[w] for w in TURNS])[-1] for config in (DANA, NESTEROV))
    assert not any(np.allclose(ours[index], shared[index]) for index in TRAINED)


def test_an_update_of_all_is_nesterov_on_the_mean() -> None:
    """Velocities are linear: under a barrier their sum is the one velocity."""
    rounds = [[0, 1, 2]] * 6
    for mine, theirs in zip(versions(DANA, rounds), versions(NESTEROV, rounds), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@promise("DANA converges where one shared momentum diverges (Hakimi et al. 2019).")
@pytest.mark.parametrize("rate", [0.03, 0.08])
def test_naive_momentum_diverges_and_dana_does_not(rate: float) -> None:
    """Eight workers of equal speed on a quadratic with curvatures 1 and 0.1, gamma 0.9."""

    def distance(optimizer: str) -> float:
        options = {"dimensions": 2, "condition": 10.0, "batches_per_epoch": 150}
        run = simulate(
            experiment(
                "async",
                workers=8,
                optimizer={"name": optimizer, "learning_rate": rate},
                simulation={"problem": "quadratic", "compute": "constant(1)", "options": options},
            )
        )
        assert isinstance(run.cluster.store, ShardStore)
        return float(np.abs(run.cluster.store.weights()["x"]).max())

    assert not distance("nesterov") < 1e3
    assert distance("dana-zero") < 0.1


def test_an_aggregate_is_nobodys_gradient() -> None:
    sentence = "'dana-zero' keeps a velocity for each worker and needs each one's own gradient"
    with pytest.raises(OptimizerError, match=sentence):
        build_cluster(
            experiment(
                "median", workers=3, optimizer={"name": "dana-zero"}, simulation={"problem": "quadratic"}
            )
        )
    chosen = ["cluster.workers=3", "policy.name=median", "optimizer.name=dana-zero"]
    with pytest.raises(OptimizerError, match=sentence):
        resolve(Options(ps_hosts="127.0.0.1:0", task_index=0, overrides=chosen), None)
    assert not build({"name": "nesterov"}).per_worker


@pytest.mark.parametrize("dropped", [False, True])
def test_nothing_is_kept_for_a_worker_that_left_with_contributions_pending(dropped: bool) -> None:
    """Two of them: each needs a velocity once more, and the last takes it along. A dropped one makes none."""
    plan, shards = shards_of(2, DANA)
    install(plan, shards, numbers(1))
    for shard in shards:
        for worker in ("w0", "w1"):
            shard.execute(Admit(worker, 0))
        for ticket, worker in ((2, "w0"), (3, "w0"), (4, "w1")):
            shard.execute(Hold(ticket, 0, worker=worker))
    for ticket in (2, 3, 4):
        stage(plan, shards, ticket, numbers(ticket))
    for shard in shards:
        shard.execute(Dismiss("w0"))
        if dropped:
            shard.execute(Discard())
            shard.execute(Release(2))
        else:
            shard.execute(Apply(1, 1.0, 1.0, (Fold(2, 1.0),)))
        assert kept(shard) == set()
        version = shard.version
        shard.execute(Apply(version + 1, 0.5, 1.0, (Fold(3, 1.0), Fold(4, 1.0))))
        assert kept(shard) == {"w1"}
        shard.execute(Admit("w0", 1))
        shard.execute(Hold(5, version + 1, worker="w0"))
    stage(plan, shards, 5, numbers(5))
    for shard in shards:
        shard.execute(Apply(shard.version + 1, 1.0, 1.0, (Fold(5, 1.0),)))
        assert kept(shard) == {"w0", "w1"}


def kept(shard: Shard) -> set[str]:
    """Workers with a velocity of their own."""
    return set(shard.state().facts.slot_workers)
