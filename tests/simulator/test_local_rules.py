"""Local rules on simulated workers: papers' fixed points and stability, time, faults."""

from typing import Any

import numpy as np
import pytest

from psserver.decisions import entries
from tests.local import plain
from tests.promises import promise
from tests.repetitions import usually
from tests.simulator.lab import Outcome, experiment, simulate
from tests.simulator.test_learning import learn, weights

OUTER = {"name": "sgd", "learning_rate": 1.0}
# The data of Douillard et al.'s kind of question: workers whose optima differ.
MIXED = {"dimensions": 1, "condition": 1.0, "centres": [1, -2, 0.5, 4], "curvatures": [1, 0.2, 3, 0.7]}


def local_sgd(steps: int, rate: float, problem: str = "quadratic", **more: Any) -> Outcome:
    knobs = {"steps": steps, "learning_rate": rate}
    return learn("local-sgd", problem, policy_knobs=knobs, optimizer=OUTER, **more)


@promise("A local rule with one step is sync.")
@pytest.mark.parametrize("problem", ["logistic", "mlp"])
def test_one_local_step_is_sync(problem: str) -> None:
    """Not to the bit: sync adds gradients and then scales, this adds differences of weights."""
    ours = local_sgd(1, 0.1, problem, cluster={"servers": 2})
    theirs = learn("sync", problem, optimizer={"name": "sgd", "learning_rate": 0.1}, cluster={"servers": 2})
    assert ours.versions == theirs.versions > 30
    for name, values in weights(theirs).items():
        np.testing.assert_allclose(weights(ours)[name], values, atol=2e-5)
    assert ours.verdict().ok


@promise("Local steps on different data rest at a moved point (Karimireddy et al. 2020).")
@pytest.mark.parametrize(("steps", "rests_at"), [(1, 1.000000), (10, 1.221099), (50, 1.142294)])
def test_different_data_move_the_fixed_point_as_theory_says(steps: int, rests_at: float) -> None:
    """x* = sum w_i c_i / sum w_i with w_i = 1 - (1 - rate h_i)^H; the optimum of the mean is 1."""
    options = MIXED | {"batches_per_epoch": 200 * steps}
    run = local_sgd(steps, 0.1, epochs=1, options=options)
    h, c = np.array(MIXED["curvatures"]), np.array(MIXED["centres"])
    w = 1 - (1 - 0.1 * h) ** steps
    assert (w @ c) / w.sum() == pytest.approx(rests_at, abs=1e-6)
    assert weights(run)["x"][0] == pytest.approx(rests_at, abs=2e-5)


def test_diloco_is_its_formula() -> None:
    """AdamW within, its moments kept; Nesterov outside, on the mean of what the workers bring."""
    inner = {"learning_rate": 0.02, "weight_decay": 0.1, "beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-8}
    optimizer = {"name": "nesterov", "learning_rate": 0.7, "momentum": 0.9}
    options = {"dimensions": 3, "centres": [1, -2, 0.5, 4], "batches_per_epoch": 30}
    run = learn(
        "diloco",
        "quadratic",
        epochs=1,
        options=options,
        optimizer=optimizer,
        policy_knobs={"steps": 5, **inner},
    )
    assert run.versions == 6 and run.verdict().ok
    h = np.logspace(0, -1, 3)
    tasks = [plain.Quadratic(h, centre) for centre in options["centres"]]
    adams = [plain.AdamW(*inner.values()) for _ in tasks]
    x, m = np.ones(3), np.zeros(3)
    for _ in range(6):
        brought = []
        for task, adam in zip(tasks, adams, strict=True):
            own = x
            for _ in range(5):
                own = adam.step(own, task.gradient(own))
            brought.append(x - own)
        g = np.mean(brought, axis=0)
        m = 0.9 * m - 0.7 * g
        x = x + 0.9 * m - 0.7 * g
    np.testing.assert_allclose(weights(run)["x"], x, atol=2e-5)


# EASGD


def test_easgd_is_its_formula_in_the_order_of_the_log() -> None:
    knobs = {"alpha": 0.2, "steps": 3, "learning_rate": 0.1}
    options = {"dimensions": 2, "centres": [1, -2, 0.5, 4], "batches_per_epoch": 40}
    run = learn("easgd", "quadratic", epochs=1, options=options, optimizer=OUTER, policy_knobs=knobs)
    tasks = [plain.Quadratic(np.logspace(0, -1, 2), centre) for centre in options["centres"]]
    own: dict[str, np.ndarray] = {}
    versions, bases = [np.ones(2)], dict[int, int]()
    left = {f"w{number}": 40 for number in range(4)}
    for entry in run.entries:
        if isinstance(entry, entries.Grant):
            bases[entry.ticket] = entry.version
        elif isinstance(entry, entries.Commit):
            worker, centre = entry.worker, versions[bases[entry.ticket]]
            count = min(3, left[worker])
            left[worker] -= count
            x = plain.sgd_steps(own.get(worker, centre), tasks[int(worker[1:])], 0.1, count)
            e = 0.2 * (x - centre)
            own[worker] = x - e
            versions.append(versions[-1] + e)
    np.testing.assert_allclose(weights(run)["x"], versions[-1], atol=1e-5)
    assert set(left.values()) == {0} and run.verdict().ok


# Time


def test_a_ticket_takes_the_time_of_its_batches() -> None:
    knobs = {"steps": 5, "learning_rate": 0.1}
    for policy in ("local-sgd", "local-async", "easgd"):
        run = simulate(
            experiment(
                policy,
                workers=3,
                policy_knobs=knobs,
                simulation={"compute": "constant(2)", "batches": 12, "batch_size": 8},
            )
        )
        # 5 + 5 + 2 batches of 2 s, for each of three workers at once.
        assert run.seconds == pytest.approx(24.0), policy
        assert run.versions == (3 if policy == "local-sgd" else 9)
        assert [e.samples for e in run.entries if isinstance(e, entries.Commit)][-1] == 16
        last = [e.batch for e in run.entries if isinstance(e, entries.Commit) and e.worker == "w0"]
        assert last == [4, 9, 11]


# Faults


@pytest.mark.parametrize(
    "policy", usually(["diloco", "easgd"], soak=["local-sgd", "local-async", "dana-slim"])
)
def test_same_seed_same_bits_whatever_goes_wrong(policy: str) -> None:
    knobs: dict[str, Any] = {"steps": 3} if policy != "dana-slim" else {}

    def chaotic(seed: int) -> Outcome:
        return learn(
            policy,
            "mlp",
            epochs=2,
            policy_knobs=knobs,
            run={"seed": seed},
            cluster={"servers": 2, "wire_dtype": "bfloat16"},
            links={"latency": 0.01, "bandwidth": 1e5},
            faults={
                "loss": 0.1,
                "duplicate": 0.1,
                "crashes": [{"worker": 1, "at": 7.0, "restart": 2.0}],
                "disconnects": [{"worker": 2, "at": 5.0, "seconds": 30.0}],
            },
            simulation={"compute": "gamma(4, 0.25)", "interrupt": True},
        )

    first, second, other = chaotic(3), chaotic(3), chaotic(4)
    assert first.lines == second.lines and first.summary == second.summary
    assert first.summary["weights_sha256"] != other.summary["weights_sha256"]
    assert first.verdict().ok and first.law().holds


@pytest.mark.parametrize("policy", ["local-sgd", "easgd"])
def test_steps_that_diverge_end_the_worker_not_the_job(policy: str) -> None:
    knobs = {"steps": 4, "learning_rate": 1e18}
    run = learn(policy, "quadratic", workers=2, policy_knobs=knobs, optimizer=OUTER, epochs=10)
    assert all("tickets in a row" in worker.failure for worker in run.cluster.workers.values())
    assert run.verdict().ok


def test_a_cancelled_ticket_of_several_batches_goes_on_with_the_next_ones() -> None:
    """A policy of one's own: local steps, and the last of three is always cancelled."""
    run = simulate(
        experiment(
            "tests.simulator.local_backup:LocalBackup",
            workers=3,
            policy_knobs={"steps": 4},
            simulation={"compute": "exponential(1)", "problem": "quadratic", "interrupt": True},
        )
    )
    assert run.cancelled > 10 and run.verdict().ok
    for worker in ("w0", "w1", "w2"):
        batches = [e.batch for e in run.entries if isinstance(e, entries.Commit) and e.worker == worker]
        assert all(batch % 4 == 3 for batch in batches) and batches == sorted(set(batches))
