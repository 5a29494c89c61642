"""Fragments: a round of `diloco` exchanges one group of rows; the bits of a dumb twin, simulated, live, replayed."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from pslab.check.checker import check_run
from pslab.launch.experiments import load
from pslab.replay.execution import Replay
from pslab.replay.records import read_records
from pslab.replay.run_folder import prove, replay_of
from pslab.simulator.problems import NumpyTrainer
from pslab.simulator.problems.digits import Mlp
from pslab.simulator.store import ShardStore
from psserver.optimizers import OptimizerError
from psserver.optimizers import build as build_optimizer
from psserver.options import Options
from psserver.policies.declarations import TensorParts
from psserver.settings import resolve
from pswire.config.experiment import ExperimentError
from pswire.model.groups import Groups
from pswire.model.plan import make_plan
from pswire.transport.wire import wire_named
from psworker.data import shard_client
from psworker.data.changes import KnownVersion
from tests.checkpoint.test_simulated import EVERY, cut_off, forgotten, kinds, play
from tests.exchange.streaming_twin import NESTEROV, ROUNDS, WORKERS, Stateful, simulated, trained, twin
from tests.links import connect_link
from tests.promises import promise
from tests.repetitions import usually
from tests.replay.simulated import edit_log, simulate
from tests.sentences import Recorder
from tests.service.serving import serving


@pytest.mark.parametrize(
    ("wire", "fragments", "servers"),
    usually(
        [("float32", 4, 2), ("int4", 1, 3), ("int4/int4", 2, 1)],
        soak=list(product(("float32", "int4", "int4/int4"), (1, 2, 4), (1, 2, 3))),
    ),
)
def test_simulated_runs_have_the_bits_of_a_twin_in_one_process(
    tmp_path: Path, wire: str, fragments: int, servers: int
) -> None:
    run = simulated(tmp_path, wire, fragments, servers)
    found = load_file(run.path / "weights.safetensors")
    for name, values in twin(wire, fragments).items():
        np.testing.assert_array_equal(found[name], values)
    replay = replay_of(run)
    assert replay.run().first is None and prove(run, replay).holds and check_run(run).ok


# Live


TRANSPORTS = [
    ("int4/int4", 2, "grpc"),
    ("int4", 1, "socket"),
    ("float32", 3, "socket"),
    ("float32", 2, "shared-memory"),
]


@pytest.mark.parametrize(("wire", "servers", "transport"), TRANSPORTS)
def test_live_runs_have_them_too(tmp_path: Path, wire: str, servers: int, transport: str) -> None:
    run = trained(tmp_path, wire, 3, servers, transport)
    found = load_file(run.path / "weights.safetensors")
    for name, values in twin(wire, 3).items():
        np.testing.assert_array_equal(found[name], values)
    replay = Replay(list(read_records(run)), NumpyTrainer(Mlp()), 1, wire)
    assert replay.run().first is None and replay.result.finished
    assert replay.store.sha256() == run.summary.weights_sha256 and check_run(run).ok


@pytest.mark.parametrize(
    ("wire", "fragments", "servers", "overlap"),
    [("float32", 2, 1, 0), ("int4", 3, 2, 0), ("int4", 2, 3, 2), ("float32", 1, 2, 2)],
)
def test_state_travels_with_every_group(
    tmp_path: Path, wire: str, fragments: int, servers: int, overlap: int
) -> None:
    """Each version has the mean of what the workers' batches did to it."""
    mixing = 0.5 if overlap else 0.0
    run = trained(tmp_path, wire, fragments, servers, "grpc", overlap, mixing, Stateful)
    found = load_file(run.path / "weights.safetensors")
    expected = twin(wire, fragments, overlap, mixing, state=True)
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    replay = Replay(list(read_records(run)), Stateful(), 1, wire)
    assert replay.run().first is None and replay.result.finished
    assert replay.store.sha256() == run.summary.weights_sha256 and check_run(run).ok


@promise("Fragments move the bytes of one group, and have the bits of a twin in one process.")
@pytest.mark.parametrize(
    ("wire", "servers"), [("float32", 1), ("int4", 1), ("int4/bfloat16", 2), ("int4/int4", 2)]
)
def test_a_round_moves_the_bytes_of_one_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: str, servers: int
) -> None:
    """As the simulated cluster counts them: each contribution, and each version but the first of a worker."""
    pushed: list[int] = []
    pulled: list[int] = []
    messages, advance = shard_client.messages, KnownVersion.advance

    def sent(request: Any, *args: Any) -> Any:
        if request.HasField("push"):
            pushed.append(request.push.bytes)
        return messages(request, *args)

    def received(known: KnownVersion, version: int, chain: np.ndarray, count: int, out: np.ndarray) -> None:
        pulled.append(chain.nbytes)
        advance(known, version, chain, count, out)

    monkeypatch.setattr(shard_client, "messages", sent)
    monkeypatch.setattr(KnownVersion, "advance", received)
    trained(tmp_path, wire, 2, servers, "grpc")
    plan = make_plan([spec for spec, _ in NumpyTrainer(Mlp()).specs], servers)
    store = ShardStore(
        plan, build_optimizer(NESTEROV), TensorParts(fragments=2), workers=WORKERS, wire_dtype=wire
    )
    rounds = [size for version in range(ROUNDS) for size in store.sizes_up(version)]
    assert sorted(pushed) == sorted([*store.sizes_up(None), *WORKERS * rounds])
    codec = wire_named(wire).deltas or wire_named(wire).down
    parts = Groups(plan, 2)
    steps = [
        [codec.size(parts.of(version, server).layout) for server in range(servers)]
        for version in range(ROUNDS)
    ]
    # One of them evaluates the last version.
    *earlier, last = steps
    assert sorted(pulled) == sorted([*WORKERS * sum(earlier, []), *last])
    if not wire_named(wire).deltas:
        assert steps == [store.sizes_from(version, version + 1) for version in range(ROUNDS)]
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


@pytest.mark.parametrize("wire", usually(["top-k", "int8/int4"], soak=["float32", "int4"]))
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


@pytest.mark.parametrize("wire", usually(["int4/int4"], soak=["float32"]))
def test_a_job_that_resumes_on_other_servers_is_replayed_to_the_bit(tmp_path: Path, wire: str) -> None:
    """Workers begin anew at the restored version; each group goes on with its own momentum, and what was left out."""
    settings = {
        "cluster": {"wire_dtype": wire},
        "knobs": {"steps": 2, "fragments": 3, "learning_rate": 0.01},
        "run": {**EVERY, "checkpoint_every": "1 version"},
        "optimizer": NESTEROV,
        "simulation": {"problem": "mlp"},
    }
    run = play(tmp_path / "whole", "diloco", **settings)
    again = play(
        *(cut_off(run, tmp_path / "again", 0.7), "diloco", "latest"),
        **{**settings, "cluster": {"servers": 3, "wire_dtype": wire}},
    )
    lost = ("local rule",) if wire == "float32" else ("local rule", "codec")
    assert kinds(again)["restore"] == 1 and forgotten(again) == {lost}
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
    {"cluster": {"servers": 1}, "optimizer": {"name": "lamb", "learning_rate": 0.1}},
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
    path.write_text(f'{policy}{job}[optimizer]\nname = "lamb"\nlearning_rate = 0.1\n', "utf-8")
    with pytest.raises(ExperimentError) as refused:
        load(path)
    sentences.check(refused)


def test_a_loop_of_ones_own_that_pushes_more_than_the_group_is_told_so(sentences: Recorder) -> None:
    weights = {"w": np.ones((10, 4), np.float32)}
    with serving(1, policy="diloco", overrides=["policy.fragments=2"]) as cluster:
        with connect_link(cluster.hosts, weights, local_rules=True) as session:
            grant = session.ready()
            session.pull(grant)
            with pytest.raises(ValueError) as refused:
                session.push(grant, {"w": np.ones((10, 4))})
            sentences.check(refused)
            half = np.tile([1.0, 0.0], 5)[:, None] * np.ones((10, 4))
            session.push(grant, {"w": half})
            session.commit(grant, samples=1)
            assert session.dispositions()[0].fate == "applied"


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
