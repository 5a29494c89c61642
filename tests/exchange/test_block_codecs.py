"""Gradients that travel by codecs with scales and error feedback, through worker, wire, server, log and replay."""

import json
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import grpc
import numpy as np
import pytest

import psworker
from pslab.check.checker import check_run
from pslab.replay.execution import DataError
from pslab.replay.run_folder import prove, replay_of
from psserver.codec_rules import check_codec
from psserver.optimizers import build as build_optimizer
from psserver.policies import PolicyError
from psserver.policies import build as build_policy
from pswire.addresses import Address
from pswire.config.experiment import ExperimentError
from pswire.model.plan import ShardLayout, VariableSpec, make_plan
from pswire.transport.blocks import ErrorFeedback
from pswire.transport.codecs import Encoder
from pswire.transport.wire import CODECS, codec_named, wire_named
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import model_pb2
from psworker.control.stream import SessionStream
from psworker.data.carrier import Settings
from psworker.data.shard_client import ShardClient
from psworker.errors import PayloadRefused
from tests.links import connect_link
from tests.promises import promise
from tests.replay.simulated import edit_log, simulate
from tests.sentences import Recorder
from tests.service.serving import granted, serving

VARIABLES = (
    VariableSpec("kernel", (50, 40)),
    VariableSpec("bias", (3,)),
    VariableSpec("mean", (5,), kind="state"),
)
SCALED = [name for name, codec in CODECS.items() if codec.scaled]


def ones() -> list[tuple[VariableSpec, np.ndarray]]:
    return [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]


def arriving(encoder: Encoder, name: str, layout: ShardLayout, ticket: int, flat: np.ndarray) -> np.ndarray:
    out = np.empty_like(flat)
    codec_named(name).decoder(layout, out).feed(encoder.encode(ticket, flat).data)
    encoder.keep(ticket)
    return out


@pytest.mark.parametrize(
    ("name", "transport", "servers"),
    [(name, ("grpc", "socket", "auto")[n % 3], 1 + n % 2) for n, name in enumerate(SCALED)],
)
def test_gradients_arrive_rounded_and_weights_and_initial_values_as_they_are(
    name: str, transport: str, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Chunks cut scales and rows.
    monkeypatch.setattr("pswire.transport.frames.CHUNK_BYTES", 999)
    random = np.random.default_rng(7)
    with (
        serving(servers=servers) as cluster,
        connect_link(cluster.hosts, ones(), wire_dtype=name, transport=transport) as session,
    ):
        shards = session.plan.shards
        weights = [np.ones(shard.elements, np.float32) for shard in shards]
        encoders = [codec_named(name).encoder(shard) for shard in shards]
        for _ in range(3):
            grant = granted(session)
            for got, held in zip(session.pull_flat(grant), weights, strict=True):
                np.testing.assert_array_equal(got, held)
            gradients = [random.normal(size=flat.size).astype(np.float32) for flat in weights]
            session.contribute(grant, gradients, samples=1)
            for number, (shard, gradient) in enumerate(zip(shards, gradients, strict=True)):
                sent = arriving(encoders[number], name, shard, grant.ticket, gradient)
                # sgd with a learning rate of 1; state is added.
                sent[: shard.trainable] *= -1
                weights[number] = weights[number] + sent
        assert set(session.transport) == {"socket" if transport == "auto" else transport}
        assert session.dtypes == ("float32",)


@promise("Another process begins without a residual; what that costs.")
def test_another_incarnation_remembers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ShardLayout] = []
    wire = wire_named("int8")
    monkeypatch.setattr(type(wire.up), "encoder", lambda codec, layout: made.append(layout))
    plan = make_plan(VARIABLES, 1)
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        shard = ShardClient(
            0, Address("127.0.0.1", 1), channel, Settings(plan, wire, 1.0, "grpc"), threading.Event()
        )
        for incarnation in (0, 0, 1, 1):
            shard.admit(pb.JoinReply(job="job", worker="w0", incarnation=incarnation))
    assert made == [plan.shards[0]] * 2


CASES = [
    *product(SCALED, ["rennala"], [{"aggregate": 2}]),
    ("int4", "async", {}),
    ("int4", "k-batch-sync", {"aggregate": 2}),
    ("top-k", "diloco", {"steps": 3}),
]


@pytest.mark.parametrize(("name", "policy", "knobs"), CASES, ids=str)
def test_a_simulated_run_and_its_replay(tmp_path: Path, name: str, policy: str, knobs: dict) -> None:
    """To the bit, dropped payloads and their residuals included, and other bits than those of float32."""
    sections = {"optimizer": {"name": "sgd", "learning_rate": 0.05}, "simulation": {"problem": "mlp"}}
    run = simulate(tmp_path / "run", policy, knobs, cluster={"wire_dtype": name}, **sections)
    replay = replay_of(run)
    replay.run()
    assert prove(run, replay).holds
    assert replay.result.skipped == 0 or not codec_named(name).remembers
    plain = simulate(tmp_path / "plain", policy, knobs, **sections)
    assert run.summary.weights_sha256 != plain.summary.weights_sha256


@promise("One, two and three servers have the same weights.")
@pytest.mark.parametrize("name", SCALED)
def test_the_same_weights_on_any_number_of_servers(tmp_path: Path, name: str) -> None:
    found = set()
    for servers in (1, 2, 3):
        run = simulate(
            tmp_path / str(servers),
            "sync",
            cluster={"wire_dtype": name, "servers": servers},
            optimizer={"name": "sgd", "learning_rate": 0.05},
            simulation={"problem": "mlp"},
        )
        found.add(run.summary.weights_sha256)
    assert len(found) == 1


def test_the_log_says_which_residual_counts(tmp_path: Path) -> None:
    """The residual of a dropped commit is taken back, which the next commit says; replay holds the log to it."""
    run = simulate(
        tmp_path / "run",
        "rennala",
        {"aggregate": 2},
        cluster={"wire_dtype": "int8"},
        simulation={"problem": "mlp"},
    )
    lines = [json.loads(line) for line in (run.path / "decisions.jsonl").read_text().splitlines()]
    dropped, last, seen = set(), {}, {"kept": 0, "taken back": 0}
    for line in lines:
        if line["kind"] == "drop":
            dropped.add(line["ticket"])
        if line["kind"] == "commit":
            before = last.get(line["worker"], [])
            if before and line.get("residual") == before[-1]:
                seen["kept"] += 1
            elif before:
                assert before[-1] in dropped and line.get("residual") in (None, *before[:-1])
                seen["taken back"] += 1
            last[line["worker"]] = [*before, line["ticket"]]
    assert min(seen.values()) > 0

    def forget(records: list[dict]) -> None:
        later = [r for r in records if r["kind"] == "commit" and "residual" in r]
        del later[-1]["residual"]

    assert check_run(run).ok
    edit_log(run, forget)
    assert [each.check for each in check_run(run).violations] == ["members"]
    with pytest.raises(DataError, match="residual"):
        replay_of(run).run()


@pytest.mark.parametrize(
    ("name", "transport"), [(name, ("grpc", "socket")[n % 2]) for n, name in enumerate(SCALED)]
)
def test_a_number_that_is_not_finite_behind_pieces_that_are_sent_changes_nothing(
    name: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next payload has the bits that it has without the attempt."""
    monkeypatch.setattr("pswire.transport.frames.CHUNK_BYTES", 32)
    finals = []
    for fails in (False, True):
        with (
            serving(overrides=["run.versions=3"]) as cluster,
            connect_link(cluster.hosts, ones(), wire_dtype=name, transport=transport) as session,
        ):
            for seed in range(3):
                grant = granted(session)
                flats = [
                    np.random.default_rng(seed).normal(size=shard.elements).astype(np.float32)
                    for shard in session.plan.shards
                ]
                if fails:
                    bad = [flat.copy() for flat in flats]
                    # The last element that is encoded: all pieces but its own are sent.
                    bad[0][50 * 40 - 1] = np.nan
                    with pytest.raises(PayloadRefused, match="element 1999"):
                        session.contribute(grant, bad, samples=1)
                session.contribute(grant, flats, samples=1)
            session.done()
            finals.append(session.pull_final()[0].tobytes())
            assert session.info.incarnation == 0
    assert finals[0] == finals[1]


@promise("A payload that is sent again has the same bytes.")
def test_a_payload_that_is_sent_again_has_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Although its worker hears meanwhile that the payload before it was dropped: the servers may hold it already."""
    dropped, sent = [0], []
    monkeypatch.setattr(SessionStream, "dropped", property(lambda stream: dropped[0]))
    pieces = ErrorFeedback.pieces

    def recorded(encoder: ErrorFeedback, ticket: int, values: np.ndarray, part: None) -> Iterator[np.ndarray]:
        sent.append((ticket, np.concatenate(list(pieces(encoder, ticket, values)))))
        return iter([sent[-1][1]])

    monkeypatch.setattr(ErrorFeedback, "pieces", recorded)
    with (
        serving(servers=2, out=tmp_path, shared=True, overrides=["run.versions=3"]) as cluster,
        connect_link(cluster.hosts, ones(), wire_dtype="int8", transport="grpc") as session,
    ):
        tickets = []
        for _ in range(3):
            grant = granted(session)
            flats = [np.linspace(0, 1, shard.elements, dtype=np.float32) for shard in session.plan.shards]
            session.push_flat(grant, flats)
            if tickets:
                dropped[0] = tickets[-1]
                session.push_flat(grant, flats)
            session.commit(grant, samples=1)
            dropped[0] = 0
            tickets.append(grant.ticket)
        session.done()
    lines = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert [each.get("residual") for each in lines if each["kind"] == "commit"] == [None, *tickets[:-1]]
    for ticket in tickets[1:]:
        payloads = [bytes(payload) for each, payload in sent if each == ticket]
        assert len(payloads) == 4 and len(set(payloads)) == 2


def test_workers_of_a_job_agree_on_it() -> None:
    with (
        serving(workers=2) as cluster,
        connect_link(cluster.hosts, ones(), wire_dtype="int8"),
        pytest.raises(
            psworker.Refused, match="send gradients as int8: expected wire_dtype int8, got float32"
        ),
    ):
        connect_link(cluster.hosts, ones())


@pytest.mark.parametrize("name", ["int8", "float32/int8"])
def test_shared_memory_carries_no_codec(name: str, sentences: Recorder) -> None:
    with pytest.raises(ValueError) as refused:
        connect_link(["127.0.0.1:1"], ones(), wire_dtype=name, transport="shared-memory")
    sentences.check(refused)


@promise("Each refusal is one sentence.")
@pytest.mark.parametrize(
    ("codec", "policy", "knobs", "optimizer", "problem"),
    [
        ("int8", "k-batch-sync", {}, "sgd", None),
        ("int8", "easgd", {}, "sgd", "elastic averaging"),
        ("int4", "dana-slim", {}, "sgd", "dana-slim predicts"),
        ("int4", "sync", {}, "lamb", "norm of the whole update"),
        ("top-k", "median", {}, "sgd", "median of such payloads is zero"),
        ("top-k", "dc-asgd", {}, "sgd", "squares gradients"),
        ("top-k", "sync", {}, "adam", "adam would divide"),
        ("top-k", "sync", {}, "sgd", None),
        ("top-k", "diloco", {}, "sgd", None),
    ],
)
def test_what_cannot_be_right_is_refused(
    codec: str, policy: str, knobs: dict, optimizer: str, problem: str | None
) -> None:
    made = build_policy(policy, knobs, workers=5)
    updates = build_optimizer({"name": optimizer, "learning_rate": 0.1})
    with pytest.raises(PolicyError, match=f"{problem}.*expected float32") if problem else nullcontext():
        check_codec(codec_named(codec), made, updates)


def test_a_refusal_names_what_is_expected_before_anything_is_trained(
    tmp_path: Path, sentences: Recorder
) -> None:
    with pytest.raises(ExperimentError) as refused:
        simulate(tmp_path / "run", "median", cluster={"wire_dtype": "top-k"})
    sentences.check(refused)
    assert model_pb2.WIRE_DTYPE_TOP_K == codec_named("top-k").number
