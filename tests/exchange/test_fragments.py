"""Fragments: a round of `diloco` exchanges one group of rows; the bits of a dumb twin, simulated, live, replayed."""

import threading
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import psworker
from pslab.check.checker import check_run
from pslab.launch.experiments import load
from pslab.replay.execution import Replay
from pslab.replay.run_folder import prove, replay_of
from pslab.replay.schedule import read_records
from pslab.runs.folder import Run
from pslab.simulator.problems import NumpyTrainer
from pslab.simulator.problems.digits import Mlp
from pslab.simulator.store import ShardStore
from psserver.optimizers import OptimizerError
from psserver.optimizers import build as build_optimizer
from psserver.options import Options
from psserver.policies.declarations import TensorParts
from psserver.settings import resolve
from pswire.config.experiment import ExperimentError
from pswire.model.plan import VariableSpec, make_plan
from pswire.transport.blocks import INT4
from pswire.transport.wire import wire_named
from psworker import loop
from psworker.data import shard_client
from psworker.data.changes import KnownGroups
from tests.checkpoint.test_simulated import EVERY, cut_off, forgotten, kinds, play
from tests.pswire.test_blocks import block
from tests.replay.simulated import edit_log, simulate
from tests.sentences import Recorder
from tests.service.serving import serving

WORKERS, STEPS, SEED = 2, 3, 3
INNER = {"learning_rate": 0.01, "weight_decay": 0.1, "beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-8}
NESTEROV = {"name": "nesterov", "learning_rate": 0.7, "momentum": 0.9}
# Of a worker, all of one size.
BATCHES = 21
ROUNDS = BATCHES // STEPS


def simulated(out: Path, wire: str, fragments: int, servers: int, **sections: Any) -> Run:
    return simulate(
        out,
        "diloco",
        {"steps": STEPS, "fragments": fragments, **INNER},
        cluster={"servers": servers, "workers": WORKERS, "wire_dtype": wire, "worker_timeout": 60.0},
        optimizer=NESTEROV,
        run={"seed": SEED, "versions": ROUNDS},
        **{"simulation": {"problem": "mlp"}, **sections},
    )


# The twin


def twin(wire: str, fragments: int) -> dict[str, np.ndarray]:
    """Train in one process, on variables by name and masks of rows."""
    problem = Mlp()
    weights = {name: values.copy() for name, values in problem.initial().items()}
    masks = masks_of(weights, fragments)
    velocity = {name: np.zeros_like(values) for name, values in weights.items()}
    workers = [TwinWorker(problem, worker, weights, wire) for worker in range(WORKERS)]
    rate, momentum, mean = np.float32(0.7), np.float32(0.9), np.float32(1 / WORKERS)
    for version in range(ROUNDS):
        mask, former = masks[version % fragments], masks[(version - 1) % fragments]
        sent = [worker.round(weights, mask, former) for worker in workers]
        for name, values in weights.items():
            total = sent[0][name]
            for other in sent[1:]:
                total = total + other[name]
            g, here = total * mean, mask[name]
            moved = velocity[name] * momentum - g * rate
            velocity[name] = np.where(here, moved, velocity[name])
            weights[name] = np.where(here, values + (moved * momentum - g * rate), values)
    return weights


def masks_of(weights: dict[str, np.ndarray], fragments: int) -> list[dict[str, np.ndarray]]:
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
    def __init__(self, problem: Any, index: int, weights: dict[str, np.ndarray], wire: str) -> None:
        self.problem, self.wire, self.steps = problem, wire, 0
        self.batches = problem.batches(index, WORKERS, SEED, 0)
        self.own = {name: values.copy() for name, values in weights.items()}
        self.m, self.v, self.residual = (
            {name: np.zeros_like(values) for name, values in weights.items()} for _ in range(3)
        )

    def round(
        self, pulled: dict[str, np.ndarray], mask: dict[str, np.ndarray], former: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return what arrives: zero outside of the group."""
        for name, values in pulled.items():
            self.own[name] = np.where(former[name], values, self.own[name])
        for _ in range(STEPS):
            self.step(self.problem.gradient(self.own, next(self.batches)).values)
        moved = {name: np.where(mask[name], pulled[name] - self.own[name], 0) for name in pulled}
        return moved if self.wire == "float32" else {n: self.coded(n, g, mask[n]) for n, g in moved.items()}

    def step(self, gradient: Any) -> None:
        self.steps += 1
        f = np.float32
        corrected = (1 - INNER["beta_2"] ** self.steps) ** 0.5 / (1 - INNER["beta_1"] ** self.steps)
        for name, g in gradient.items():
            x, m, v = self.own[name], self.m[name], self.v[name]
            x = x - x * f(INNER["weight_decay"]) * f(INNER["learning_rate"])
            m += (g - m) * f(1 - INNER["beta_1"])
            v += (g * g - v) * f(1 - INNER["beta_2"])
            self.own[name] = x - m * f(INNER["learning_rate"] * corrected) / (
                np.sqrt(v) + f(INNER["epsilon"])
            )

    def coded(self, name: str, payload: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Encode each row of the group in int4, if it has 32 elements, with what it left out last time."""
        if payload.ndim < 2 or payload.shape[1] < 32:
            return payload
        arrived = payload.copy()
        for row in np.flatnonzero(mask[:, 0]):
            wanted = payload[row] + self.residual[name][row]
            arrived[row] = np.concatenate(
                [block(INT4, wanted[at : at + 64])[1] for at in range(0, wanted.size, 64)]
            )
            self.residual[name][row] = wanted - arrived[row]
        return arrived


@pytest.mark.parametrize(("wire", "fragments"), list(product(("float32", "int4"), (1, 2, 4))))
def test_simulated_runs_have_the_bits_of_a_twin_in_one_process(
    tmp_path: Path, wire: str, fragments: int
) -> None:
    expected = twin(wire, fragments)
    for servers in (1, 2, 3):
        run = simulated(tmp_path / str(servers), wire, fragments, servers)
        found = load_file(run.path / "weights.safetensors")
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values)
        replay = replay_of(run)
        assert replay.run().first is None and prove(run, replay).holds and check_run(run).ok


# Live


def trained(out: Path, wire: str, fragments: int, servers: int, transport: str) -> Run:
    """Train with real servers, and workers on threads of this process."""
    knobs = {"steps": STEPS, "fragments": fragments, **INNER}
    overrides = [*(f"policy.{knob}={value}" for knob, value in knobs.items()), f"run.versions={ROUNDS}"]
    overrides += [f"optimizer.{knob}={value}" for knob, value in NESTEROV.items()]
    overrides += [f"run.seed={SEED}"]
    options = {"wire_dtype": wire, "transport": transport, "local_rules": True}

    def work(hosts: Any, index: int) -> None:
        trainer = NumpyTrainer(Mlp())
        with psworker.connect(hosts, trainer.specs, task_index=index, **options) as session:
            trainer.attach(session.plan)
            loop.train(session, trainer, 1, lambda *_: None)

    with serving(servers, workers=WORKERS, policy="diloco", overrides=overrides, out=out) as cluster:
        threads = [threading.Thread(target=work, args=(cluster.hosts, n)) for n in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return Run(out)


TRANSPORTS = [("float32", 1, "grpc"), ("int4", 1, "socket"), ("int4", 2, "grpc"), ("float32", 3, "socket")]


@pytest.mark.parametrize(("wire", "servers", "transport"), [*TRANSPORTS, ("float32", 2, "shared-memory")])
def test_live_runs_have_them_too(tmp_path: Path, wire: str, servers: int, transport: str) -> None:
    run = trained(tmp_path, wire, 3, servers, transport)
    found = load_file(run.path / "weights.safetensors")
    for name, values in twin(wire, 3).items():
        np.testing.assert_array_equal(found[name], values)
    replay = Replay(list(read_records(run)), NumpyTrainer(Mlp()), 1, wire)
    assert replay.run().first is None and replay.result.finished
    assert replay.store.sha256() == run.summary.weights_sha256 and check_run(run).ok


@pytest.mark.parametrize(("wire", "servers"), [("float32", 1), ("int4", 1), ("int4/bfloat16", 2)])
def test_a_round_moves_the_bytes_of_one_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: str, servers: int
) -> None:
    """As the simulated cluster counts them: each contribution, and each version but the first of a worker."""
    pushed: list[int] = []
    pulled: list[int] = []
    messages, advance = shard_client.messages, KnownGroups.advance

    def sent(request: Any, *args: Any) -> Any:
        if request.HasField("push"):
            pushed.append(request.push.bytes)
        return messages(request, *args)

    def received(known: KnownGroups, version: int, chain: np.ndarray, count: int, out: np.ndarray) -> None:
        pulled.append(chain.nbytes)
        advance(known, version, chain, count, out)

    monkeypatch.setattr(shard_client, "messages", sent)
    monkeypatch.setattr(KnownGroups, "advance", received)
    trained(tmp_path, wire, 2, servers, "grpc")
    plan = make_plan([spec for spec, _ in NumpyTrainer(Mlp()).specs], servers)
    store = ShardStore(
        plan, build_optimizer(NESTEROV), TensorParts(fragments=2), workers=WORKERS, wire_dtype=wire
    )
    rounds = [size for version in range(ROUNDS) for size in store.sizes_up(version)]
    assert sorted(pushed) == sorted([*store.sizes_up(None), *WORKERS * rounds])
    steps = [size for version in range(1, ROUNDS) for size in store.sizes_from(version - 1, version)]
    # One of them evaluates the last version.
    last = store.sizes_from(ROUNDS - 1, ROUNDS)
    assert sorted(pulled) == sorted([*WORKERS * steps, *last])
    groups = [sum(store.sizes_up(version)) for version in (0, 1)]
    whole = sum(wire_named(wire).up.size(shard) for shard in plan.shards)
    assert sum(groups) == whole
    assert max(groups) < 0.52 * whole
    # A reader that has missed as many rounds as there are groups gets a whole version.
    assert store.sizes_from(3, 5) == store.sizes_from(None, 5) == store.sizes_down


# Losses, restarts, the log


ROUGH = {
    "faults": {
        "loss": 0.1,
        "duplicate": 0.1,
        "crashes": [{"worker": 1, "at": 9.0, "restart": 3.0}, {"worker": 2, "at": 8.0}],
        "disconnects": [{"worker": 3, "at": 7.0, "seconds": 30.0}],
    },
    "links": {"latency": 0.1},
}


@pytest.mark.parametrize("wire", ["float32", "int4", "top-k"])
def test_a_rough_run_is_replayed_to_the_bit(tmp_path: Path, wire: str) -> None:
    """Workers are lost, come back without memory, and miss rounds; contributions are dropped."""
    run = simulate(
        tmp_path,
        "diloco",
        {"steps": 3, "fragments": 3, "learning_rate": 0.01},
        cluster={"wire_dtype": wire},
        optimizer={"name": "sgd", "learning_rate": 1.0},
        job={"module": "none:none", "epochs": 3},
        **ROUGH,
        simulation={"problem": "mlp"},
    )
    replay = replay_of(run)
    result = replay.run()
    assert result.first is None, str(result.first)
    assert prove(run, replay).holds and result.skipped == 0 and check_run(run).ok
    assert run.summary.versions > 10


def test_a_job_that_resumes_on_other_servers_is_replayed_to_the_bit(tmp_path: Path) -> None:
    """Workers begin anew at the restored version; each group goes on with its own momentum."""
    settings = {
        "knobs": {"steps": 2, "fragments": 3, "learning_rate": 0.01},
        "run": {**EVERY, "checkpoint_every": "1v"},
        "optimizer": NESTEROV,
        "simulation": {"problem": "mlp"},
    }
    run = play(tmp_path / "whole", "diloco", **settings)
    again = play(
        cut_off(run, tmp_path / "again", 0.7), "diloco", "latest", cluster={"servers": 3}, **settings
    )
    assert kinds(again)["restore"] == 1 and forgotten(again) == {("local rule",)}
    replay = replay_of(again)
    assert replay.run().first is None and prove(again, replay).holds and check_run(again).ok


def test_the_log_says_how_many_groups_there_are(tmp_path: Path, sentences: Recorder) -> None:
    run = simulated(tmp_path, "float32", 3, 1)
    job = next(iter(run.decisions())).fact
    assert job.policy["fragments"] == job.tensors["fragments"] == job.local["fragments"] == 3

    def change(records: list[dict[str, Any]]) -> None:
        records[0]["tensors"]["fragments"] = 2

    edit_log(run, change)
    found = check_run(run)
    assert not found.ok
    sentences.check("\n".join(map(str, found.violations)))


def test_with_one_group_the_log_has_no_more_than_the_knob(tmp_path: Path) -> None:
    job = next(iter(simulated(tmp_path, "float32", 1, 1).decisions())).fact
    assert job.local["name"] == "local-adamw" and "fragments" not in (job.tensors or {})


# Refusals


REFUSED: list[dict[str, Any]] = [
    {"cluster": {"wire_dtype": "int4/int4"}},
    {"cluster": {"servers": 1}, "optimizer": {"name": "lamb", "learning_rate": 0.1}},
    {"optimizer": {"name": "dana-zero", "learning_rate": 0.1}},
    {"optimizer": {"learning_rate": {"schedule": "cosine", "initial_learning_rate": 0.1, "decay_steps": 9}}},
    {"simulation": {"problem": "quadratic", "options": {"dimensions": 2}}},
    {"knobs": {"fragments": 17}},
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_right_is_refused_before_anything_is_trained(
    tmp_path: Path, number: int, sentences: Recorder
) -> None:
    with pytest.raises(ValueError) as refused:
        simulate(tmp_path, "diloco", **{"knobs": {"fragments": 3}, **REFUSED[number]})
    sentences.check(refused)


def test_a_real_run_is_refused_before_its_processes_start(tmp_path: Path, sentences: Recorder) -> None:
    path = tmp_path / "run.toml"
    policy, job = '[policy]\nname = "diloco"\nfragments = 2\n', '[job]\nmodule = "a.py:b"\n'
    path.write_text(f'{policy}{job}[cluster]\nwire_dtype = "int4/int4"\n', "utf-8")
    with pytest.raises(ExperimentError) as refused:
        load(path)
    sentences.check(refused)


def test_a_model_with_state_is_refused_when_it_comes(sentences: Recorder) -> None:
    specs = [
        (VariableSpec("w", (9, 4)), np.ones((9, 4))),
        (VariableSpec("m", (3,), kind="state"), np.ones(3)),
    ]
    overrides = ["policy.fragments=2"]
    with (
        serving(1, policy="diloco", overrides=overrides) as cluster,
        pytest.raises(psworker.Refused) as refused,
    ):
        psworker.connect(cluster.hosts, specs, local_rules=True)
    sentences.check(refused)


def test_a_loop_of_ones_own_that_pushes_more_than_the_group_is_told_so(sentences: Recorder) -> None:
    weights = {"w": np.ones((10, 4), np.float32)}
    with serving(1, policy="diloco", overrides=["policy.fragments=2"]) as cluster:
        with psworker.connect(cluster.hosts, weights, local_rules=True) as session:
            grant = session.ready()
            session.pull(grant)
            with pytest.raises(ValueError) as refused:
                session.push(grant, {"w": np.ones((10, 4))})
            sentences.check(refused)
            half = np.tile([1.0, 0.0], 5)[:, None] * np.ones((10, 4))
            session.push(grant, {"w": half})
            session.commit(grant, samples=1)
            assert session.dispositions(grant)[0].fate == "applied"


def test_replicas_are_refused_by_a_server_and_before_a_run_begins(
    sentences: Recorder, tmp_path: Path
) -> None:
    chosen = ["policy.name=diloco", "policy.fragments=2", "cluster.workers=1", "cluster.replicas=2"]
    hosts = "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
    with pytest.raises(OptimizerError) as refused:
        resolve(Options(ps_hosts=hosts, task_index=0, overrides=chosen, out=tmp_path), None)
    sentences.check(refused)
    path = tmp_path / "e.toml"
    path.write_text("")
    with pytest.raises(ExperimentError, match="expected cluster.replicas = 1"):
        load(path, [*chosen, "cluster.servers=3", "job.module=examples.digits:Digits"])
