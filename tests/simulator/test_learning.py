"""Learning: real shards, real optimizers, gradients of problems whose answers are known."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslab.simulator.problems import NumpyTrainer, numpy_problem
from pslab.simulator.store import ShardStore
from psserver.optimizers import build as build_optimizer
from tests.promises import promise
from tests.repetitions import usually
from tests.simulator.lab import Outcome, experiment, long, simulate


def learn(policy: str, problem: str, *, workers: int = 4, epochs: int = 3, **more: Any) -> Outcome:
    simulation = {
        "problem": problem,
        "compute": "exponential(1)",
        "options": more.pop("options", {}),
        **more.pop("simulation", {}),
    }
    job = {"module": "none:none", "epochs": epochs}
    return simulate(experiment(policy, workers=workers, job=job, simulation=simulation, **more))


def weights(run: Outcome) -> dict[str, np.ndarray]:
    assert isinstance(run.cluster.store, ShardStore)
    return run.cluster.store.weights()


def alone(
    trainer: NumpyTrainer, workers: int, seed: int, epochs: int, optimizer: dict[str, Any]
) -> np.ndarray:
    """Single-process training: the mean of all workers' gradients, summed in the order of their ranks."""
    problem, chosen = trainer.problem, build_optimizer(optimizer)
    arrays = dict(problem.initial())
    x = np.concatenate([array.ravel() for array in arrays.values()])
    state, version = chosen.init(x.size), 0
    streams = [trainer.batches(worker, workers, seed, epochs) for worker in range(workers)]
    for batches in zip(*streams, strict=True):
        total: np.ndarray | None = None
        for _, batch in batches:
            offsets = np.cumsum([0, *(array.size for array in arrays.values())])
            views = {
                name: x[offsets[i] : offsets[i + 1]].reshape(array.shape)
                for i, (name, array) in enumerate(arrays.items())
            }
            values = problem.gradient(views, batch).values
            flat = np.concatenate([values[name].ravel() for name in arrays])
            total = flat.copy() if total is None else total + flat
        assert total is not None
        out = np.empty_like(x)
        chosen.update(x, total * np.float32(1 / workers), out, state, version=version, lr_scale=1.0)
        x, version = out, version + 1
    return x


@promise("Sync is one process on the combined batch, exactly (BSP).")
@pytest.mark.parametrize(("workers", "servers"), usually([(4, 3)], soak=[(1, 1), (4, 1)]))
@pytest.mark.parametrize(
    "optimizer", [{"name": "sgd", "learning_rate": 0.1}, {"name": "adam", "learning_rate": 0.003}], ids=str
)
def test_sync_is_single_process_training(workers: int, servers: int, optimizer: dict[str, Any]) -> None:
    options = {"batch_size": 24}
    run = learn(
        "sync",
        "mlp",
        workers=workers,
        epochs=4,
        optimizer=optimizer,
        cluster={"servers": servers},
        options=options,
    )
    expected = alone(numpy_problem("mlp", options), workers, 0, 4, optimizer)
    assert run.versions >= 50
    found = np.concatenate([array.ravel() for array in weights(run).values()])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("problem", ["quadratic", "logistic", "mlp"])
def test_gradients_are_those_of_the_loss(problem: str) -> None:
    """Against central differences, in a few random directions."""
    trainer = numpy_problem(problem, {})
    _, batch = next(trainer.batches(1, 4, 0, 1))
    rng = np.random.default_rng(1)
    at = {
        n: (v + 0.1 * rng.standard_normal(v.shape)).astype(np.float32)
        for n, v in trainer.problem.initial().items()
    }
    gradient = trainer.problem.gradient(at, batch)
    for _ in range(5):
        way = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in at.items()}
        step = np.float32(1e-2 / np.sqrt(sum(v.size for v in way.values())))
        ahead = trainer.problem.gradient({n: at[n] + step * way[n] for n in at}, batch).loss
        behind = trainer.problem.gradient({n: at[n] - step * way[n] for n in at}, batch).loss
        along = sum(float(np.vdot(gradient.values[n], way[n])) for n in at)
        assert (ahead - behind) / (2 * float(step)) == pytest.approx(along, rel=2e-2, abs=2e-2)


def test_logistic_regression_reaches_its_optimum() -> None:
    run = learn(
        "sync",
        "logistic",
        epochs=150,
        optimizer={"name": "sgd", "learning_rate": 0.5},
        options={"batch_size": 360},
        simulation={"compute": "constant(1)"},
    )
    metrics = run.summary["metrics"]
    assert 0 <= metrics["gap"] < 0.01 and metrics["accuracy"] > 0.92


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("sync", {"backup": 1}),
        ("async", {}),
        ("bounded", {"aggregate": 2, "max_staleness": 2, "on_stale": "compensate"}),
        ("ssp", {"slack": 1}),
    ],
    ids=str,
)
def test_every_policy_learns(policy: str, knobs: dict[str, Any]) -> None:
    run = learn(
        policy,
        "mlp",
        epochs=14,
        policy_knobs=knobs,
        cluster={"servers": 2},
        optimizer={"name": "sgd", "learning_rate": 0.2},
    )
    assert run.verdict().ok
    assert run.summary["metrics"]["accuracy"] > 0.9


def chaotic(seed: int) -> Outcome:
    return learn(
        "bounded",
        "mlp",
        policy_knobs={"aggregate": 2, "max_staleness": 2},
        run={"seed": seed},
        cluster={"servers": 2, "wire_dtype": "bfloat16"},
        links={"latency": 0.01, "bandwidth": 1e5},
        faults={"loss": 0.1, "duplicate": 0.1, "crashes": [{"worker": 1, "at": 7.0, "restart": 2.0}]},
        simulation={"compute": "gamma(4, 0.25)", "interrupt": True},
    )


def test_same_seed_same_run_to_the_last_bit() -> None:
    first, second, other = chaotic(3), chaotic(3), chaotic(4)
    assert first.lines == second.lines and first.summary == second.summary
    assert first.summary["weights_sha256"] != other.summary["weights_sha256"]
    assert first.verdict().ok


def test_the_decisions_do_not_depend_on_what_is_learned() -> None:
    """Timing only and learning decide alike when messages have the same size."""
    common: dict[str, Any] = {"compute": "exponential(1)"}

    def decisions(simulation: dict[str, Any]) -> list[tuple[float, str]]:
        job = {"module": "none:none", "epochs": 1}
        run = simulate(experiment("async", job=job, simulation=common | simulation, workers=4))
        return [(record.t, record.entry.kind) for record in run.records]

    problem = {"problem": "quadratic", "options": {"batches_per_epoch": 50}}
    assert decisions(problem) == decisions({"problem": "none", "batches": 50})


def test_gradients_that_are_not_finite_end_the_worker_not_the_job() -> None:
    rate = {"name": "sgd", "learning_rate": 1e20}
    with np.errstate(all="ignore"):
        run = learn("async", "quadratic", workers=2, optimizer=rate, simulation={"compute": "constant(1)"})
    assert any(worker.failure for worker in run.cluster.workers.values())
    assert "nonfinite" in {getattr(entry, "reason", "") for entry in run.entries}
    assert run.verdict().ok


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_a_keras_job_is_computed_for_real(tmp_path: Path, run_lab: Callable[..., Any]) -> None:
    """The same file as for real processes; twice, with equal weights."""
    sums = []
    for name in ("first", "second"):
        done = run_lab(
            *("run", "examples/digits-sync.toml", "--engine", "simulated", "--out", str(tmp_path / name)),
            *("--set", "cluster.workers=2", "--set", "job.epochs=2"),
            *("--set", "simulation.compute=exponential(0.05)"),
        )
        assert done.returncode == 0, done.stderr
        assert run_lab("check", str(tmp_path / name)).returncode == 0
        sums.append((tmp_path / name / "weights.safetensors").read_bytes())
    assert sums[0] == sums[1]
    assert (tmp_path / "first/decisions.jsonl").read_bytes() == (
        tmp_path / "second/decisions.jsonl"
    ).read_bytes()


def test_more_workers_at_a_barrier_than_payloads_are_held() -> None:
    """Who waits for room is let in by a fold; that leads to further folds, which must not overtake it."""
    options, optimizer = {"batch_size": 24}, {"name": "sgd", "learning_rate": 0.1}
    run = learn("sync", "mlp", workers=10, epochs=2, optimizer=optimizer, options=options)
    assert run.verdict().ok
    expected = alone(numpy_problem("mlp", options), 10, 0, 2, optimizer)
    found = np.concatenate([array.ravel() for array in weights(run).values()])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.nightly
def test_async_with_different_data_has_a_bias() -> None:
    """x goes to sum r h c / sum r h with push rates r, not to the optimum; sync has no such bias."""
    centres, speeds = [2.0, 1.5, 0.7, 0.2], [1.0, 2.0, 4.0, 8.0]
    rates = np.array(speeds)
    predicted = float(rates @ np.array(centres) / rates.sum())

    def end(policy: str) -> float:
        run = simulate(
            experiment(
                policy,
                workers=4,
                run={"versions": long(6000)},
                job={"module": "none:none", "epochs": 100},
                optimizer={"name": "sgd", "learning_rate": 0.01},
                simulation={
                    "problem": "quadratic",
                    "options": {"dimensions": 1, "condition": 1.0, "centres": centres, "start": 0.0},
                    "compute": "exponential(1)",
                    "factors": {str(worker): 1 / speed for worker, speed in enumerate(speeds)},
                },
            )
        )
        return float(run.cluster.store.weights()["x"][0])  # type: ignore[attr-defined]

    assert end("async") == pytest.approx(predicted, abs=0.08)
    assert end("sync") == pytest.approx(float(np.mean(centres)), abs=0.01)
