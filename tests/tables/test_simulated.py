"""Jobs with tables, simulated and replayed: the same bits on any number of servers, under every policy."""

import threading
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pslab.check.checker import check_run
from pslab.replay import Replay
from pslab.replay.records import read_records
from pslab.replay.run_folder import prove, replay_of
from pslab.runs.folder import Run
from pslab.simulator.problems import ProblemError, numpy_problem
from pslab.simulator.problems.clicks import Clicks, auc
from psserver import weights_file
from psworker.loop import train
from tests.links import connect_link
from tests.promises import promise
from tests.repetitions import usually
from tests.replay.simulated import simulate
from tests.service.serving import serving

SMALL = {"batches_per_epoch": 30, "vocabulary": 200}
POLICIES: dict[str, dict[str, object]] = {
    "sync": {},
    "async": {},
    "bounded": {"max_staleness": 2},
    "ssp": {"slack": 1},
    "softsync": {},
    "deadline-sync": {},
    "fedbuff": {},
    "dc-asgd": {"compensation": 0.5},
}


OPTIMIZERS = ("sgd", "adagrad", "adam")


@pytest.mark.parametrize(
    ("policy", "optimizer"),
    usually([("bounded", "adagrad"), ("dc-asgd", "adam")], soak=list(product(POLICIES, OPTIMIZERS))),
)
def test_a_simulated_run_with_tables_and_its_replay(tmp_path: Path, policy: str, optimizer: str) -> None:
    run = simulate(
        tmp_path / "run",
        policy,
        POLICIES[policy],
        optimizer={"name": optimizer, "learning_rate": 0.1},
        simulation={"problem": "clicks", "options": SMALL},
    )
    replay = replay_of(run)
    replay.run()
    assert prove(run, replay).holds and check_run(run).ok
    written = weights_file.load(run.path / "weights.safetensors")
    assert sorted(written.tables) == [f"feature{f}" for f in range(4)]
    assert all(0 < ids.size <= SMALL["vocabulary"] for ids, _ in written.tables.values())


@pytest.mark.nightly
def test_training_comes_near_the_best_area_that_there_is(tmp_path: Path) -> None:
    run = simulate(
        tmp_path,
        "sync",
        optimizer={"name": "adagrad", "learning_rate": 0.3},
        job={"epochs": 5},
        simulation={"problem": "clicks", "options": {"vocabulary": 50, "strength": 2.0}},
    )
    metrics = run.summary.metrics
    assert metrics["auc"] > 0.95 * metrics["best_auc"] > 0.6


def test_gradients_are_those_of_the_loss() -> None:
    """Against central differences, in random directions of weights and rows together."""
    problem = Clicks()
    batch = next(problem.batches(1, 4, 0, 1))
    dice = np.random.default_rng(1)
    at = {name: values + dice.normal(size=values.shape) for name, values in problem.initial().items()}
    rows = {name: dice.normal(size=(64, 4)) for name in problem.ids(batch)}
    gradient, by_id = problem.gradient_rows(at, batch, rows)
    for _ in range(5):
        way = {name: dice.normal(size=values.shape) for name, values in at.items()}
        way_rows = {name: dice.normal(size=values.shape) for name, values in rows.items()}

        def loss(step: float, way: dict = way, way_rows: dict = way_rows) -> float:
            moved = {name: at[name] + step * way[name] for name in at}
            moved_rows = {name: rows[name] + step * way_rows[name] for name in rows}
            return problem.gradient_rows(moved, batch, moved_rows)[0].loss

        along = sum(float(np.vdot(gradient.values[name], way[name])) for name in at)
        along += sum(float(np.vdot(by_id[name], way_rows[name])) for name in rows)
        assert (loss(1e-4) - loss(-1e-4)) / 2e-4 == pytest.approx(along, rel=1e-3, abs=1e-4)


def test_the_area_counts_ties_half() -> None:
    assert auc(np.array([1, 2, 3, 4]), np.array([0, 0, 1, 1])) == 1
    assert auc(np.array([1, 1, 1, 1]), np.array([0, 1, 0, 1])) == 0.5
    assert auc(np.array([1, 2, 2, 3]), np.array([0, 1, 0, 1])) == 0.875


def test_options_of_clicks_are_checked() -> None:
    with pytest.raises(ProblemError):
        numpy_problem("clicks", {"features": 0})


@promise("Runs replay to the bit, with admission and eviction, too.")
@pytest.mark.parametrize(("servers", "policy"), usually([(2, "dc-asgd")], soak=[(1, "async")]))
def test_a_real_run_with_tables_replays_to_the_bit(tmp_path: Path, servers: int, policy: str) -> None:
    """Two workers in threads, by the loop of `ps-worker`."""
    overrides = ["optimizer.name=adagrad", "optimizer.learning_rate=0.1"]
    options = {**SMALL, "batches_per_epoch": 20}
    ends: list[dict[str, float]] = []
    with serving(servers, workers=2, policy=policy, out=tmp_path, overrides=overrides) as cluster:

        def work(index: int) -> None:
            trainer = numpy_problem("clicks", options)
            with connect_link(
                cluster.hosts, trainer.specs, task_index=index, tables=trainer.tables
            ) as session:
                trainer.attach(session.plan)
                outcome = train(session, trainer, 2, lambda *_: None)
                ends.append(outcome.metrics)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for served in cluster.servers:
            served.ended()
    run = Run(tmp_path)
    replay = Replay(read_records(run), numpy_problem("clicks", options), epochs=2)
    replayed = replay.run()
    assert replayed.finished and replayed.first is None and replayed.computed + replayed.skipped == 80
    assert replay.store.sha256() == run.summary.weights_sha256
    assert check_run(run).ok
    assert any(metrics.get("auc", 0) > 0.5 for metrics in ends)
