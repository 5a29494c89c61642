"""`scripts/bench codecs` and `local-steps`: the Markov chain, the experiments, what a table shows."""

import numpy as np
import pytest

from benchmarks.codecs import cli, rounds
from benchmarks.codecs.markov import SYMBOLS, MarkovChain
from benchmarks.codecs.tasks import TASKS, WORKERS
from pswire.config.experiment import parse_experiment


def small() -> MarkovChain:
    return MarkovChain(hidden=8, steps=2, batch_size=4)


def test_the_model_has_a_million_parameters():
    assert sum(values.size for values in MarkovChain().initial().values()) == pytest.approx(1e6, rel=0.05)


def test_the_gradient_is_that_of_the_loss():
    problem = small()
    # In float64, where differences are exact enough.
    at = {name: values.astype(np.float64) for name, values in problem.initial().items()}
    (batch, _) = problem.batches(0, 1, 0, 0)
    found = problem.gradient(at, batch).values
    for name, place in (("below", (int(batch[0][0]) // SYMBOLS, 3)), ("above", (2, 5)), ("bias", (7,))):
        losses = []
        for step in (1e-4, -1e-4):
            moved = {key: values.copy() for key, values in at.items()}
            moved[name][place] += step
            losses.append(problem.gradient(moved, batch).loss)
        assert found[name][place] == pytest.approx((losses[0] - losses[1]) / 2e-4, abs=1e-5)


def test_no_model_is_below_the_entropy_and_a_blind_one_is_at_the_uniform_loss():
    problem = small()
    blind = {name: np.zeros_like(values) for name, values in problem.initial().items()}
    found = problem.evaluate(blind)
    assert found["loss"] == pytest.approx(np.log(SYMBOLS), rel=1e-6)
    assert 0 < found["excess"] == pytest.approx(np.log(SYMBOLS) - problem.entropy)


def test_every_row_is_an_experiment_and_no_seed_is_another_ones():
    for task in TASKS:
        for row in task.rows:
            made = [task.experiment(row, seed) for seed in (0, 1)]
            assert [each.run.seed for each in made] == [0, 1]
            assert made[0].cluster.workers == WORKERS
            if task.seeded:
                assert [each.simulation.options["seed"] for each in made] == [0, 1]


def test_a_table_has_mean_deviation_and_seeds():
    task = TASKS[1]
    shown = cli.table(task, {"int8": [{"excess": 0.1}, {"excess": 0.2}, {"excess": 0.3}]})
    cells = [list(column.cells)[0] for column in shown.columns]
    assert cells == ["int8", "0.2000", "0.1000", "0.1000, 0.2000, 0.3000"]


def test_arms_are_experiments_and_the_goal_is_the_first_version_that_reaches_it(tmp_path):
    for arm in rounds.ARMS:
        parsed = parse_experiment(rounds.document(arm), arm.name)
        assert parsed.policy.name == arm.name.partition(",")[0]

    class Found:
        path = tmp_path

    lines = [
        '{"kind": "train", "version": 1, "loss": 3.0}',
        '{"kind": "eval", "version": 1, "metrics": {"excess": 0.9}}',
        '{"kind": "eval", "version": 2, "metrics": {"excess": 0.5}}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert rounds.versions_to(Found, 0.5) == 2 and rounds.versions_to(Found, 0.4) is None
