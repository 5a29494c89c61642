"""Tables of real servers, beside their dense twin: a variable with a row for every id. Both have equal bits."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

import psworker
from pslab.check.checker import check_run
from pslab.runs.folder import Run
from pslab.simulator.problems import numpy_problem
from psserver import weights_file
from psserver.checkpoint import CheckpointError, Store
from pswire.exits import ExitCode
from pswire.model.initial_rows import initial_rows
from pswire.model.plan import VariableSpec
from pswire.model.tables import Keys, TableSpec, mix, unique
from psworker import loop
from psworker.errors import PayloadRefused, Refused, Voided
from psworker.link import Link
from tests.links import connect_link
from tests.probes import SessionProbe
from tests.promises import promise
from tests.service.serving import Cluster, granted, serving, wait_until

IDS, DIM = 40, 3
ITEMS = TableSpec("items", DIM, "uniform", (-1.0, 1.0), 7)
USERS = TableSpec("users", 2, "zeros", ())
ALL = np.arange(IDS)
VARIABLES = [
    (VariableSpec("twin", (IDS, DIM)), initial_rows(ITEMS, mix(ALL))),
    (VariableSpec("bias", (2,)), np.zeros(2, np.float32)),
]


def connect(cluster: Cluster, name: str = "w0", transport: str = "auto", **more: object) -> Link:
    return connect_link(
        cluster.hosts, VARIABLES, name=name, transport=transport, tables=[ITEMS, USERS], **more
    )  # type: ignore[arg-type]


def gradient(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids, some of them twice, and a gradient for each."""
    dice = np.random.default_rng(seed)
    ids = dice.integers(0, IDS, size=6)
    ids[1] = ids[0]
    return ids, dice.normal(size=(6, DIM)).astype(np.float32)


def dense(ids: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    twin = np.zeros((IDS, DIM), np.float32)
    np.add.at(twin, ids, gradients)
    return twin


def step(session: Link, seed: int) -> bool:
    """Pull both and compare them, push the same gradient to both. False: the job is over."""
    grant = session.ready()
    if grant is None:
        return False
    try:
        weights, rows = session.pull(grant, rows={"items": ALL})
        assert np.array_equal(weights["twin"], rows["items"])
        ids, gradients = gradient(seed)
        twin = {"twin": dense(ids, gradients), "bias": np.ones(2)}
        session.push(grant, twin, rows={"items": (ids, gradients)})
    except Voided as error:
        # The other worker has made the last version meanwhile.
        session.abandon(grant, str(error))
        return True
    session.commit(grant, samples=1)
    return True


@pytest.mark.parametrize(
    ("transport", "dtype"), [("auto", "float32"), ("grpc", "bfloat16"), ("socket", "int8")]
)
def test_rows_travel_with_the_step_in_one_round_trip(
    transport: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = psworker.data.carrier.Carrier.ask

    def counted(self: object, requests: object) -> object:
        asked.append(1)
        return ask(self, requests)  # type: ignore[arg-type]

    monkeypatch.setattr("psworker.data.carrier.Carrier.ask", counted)
    with (
        serving(overrides=["run.versions=5", "optimizer.learning_rate=0.5"]) as cluster,
        connect(cluster, "a", transport, wire_dtype=dtype) as session,
    ):
        grant = granted(session)
        keys, _ = unique([3, 3, -1, 2**63 - 1, -(2**63)])
        session.want_rows({"items": keys})
        with session.view_flat(grant):
            before = session.pull_rows(grant, {"items": keys})["items"]
        rows = {"items": (keys, np.ones((keys.size, DIM), np.float32))}
        flats = [np.zeros(layout.elements, np.float32) for layout in session.plan.shards]
        asked.clear()
        session.contribute(grant, flats, samples=1, ready=True, rows=rows, ahead={"items": keys})
        grant = granted(session)
        with session.view_flat(grant):
            after = session.pull_rows(grant, {"items": keys})["items"]
        assert len(asked) == 1
        assert np.allclose(after, before - 0.5, atol=0.02 if dtype == "bfloat16" else 1e-6)
        assert not np.array_equal(after, before)


@pytest.mark.parametrize("servers", [1, 2])
def test_rows_are_fetched_with_their_version_during_the_computation(
    servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a policy that grants ahead; the next batch's rows are those of the version that it starts from."""
    pulled: list[int] = []
    pull = psworker.data.shard_client.ShardClient.pull_rows

    def counted(self: object, ticket: int, version: int, after: int, rows: Sequence[Keys]) -> object:
        # Without keys no message is sent.
        pulled.extend(ticket for keys in rows if keys.size)
        return pull(self, ticket, version, after, rows)  # type: ignore[arg-type]

    monkeypatch.setattr("psworker.data.shard_client.ShardClient.pull_rows", counted)
    keys, more = unique([1, 2, 3])[0], unique([3, 4])[0]
    settings = ["optimizer.learning_rate=0.5"]
    with serving(servers, overrides=settings) as cluster, connect(cluster, prefetch=True) as session:
        grant = granted(session)
        session.pull(grant)
        session.prefetch(grant, {"items": more})
        wait_until(lambda: SessionProbe(session).fetched, "the next version")
        flats = [np.zeros(layout.elements, np.float32) for layout in session.plan.shards]
        rows = {"items": (keys, np.ones((keys.size, DIM), np.float32))}
        session.contribute(grant, flats, samples=1, ready=True, rows=rows)
        ahead = session.ready()
        assert ahead is not None and ahead.version == 0
        session.pull(ahead)
        found = session.pull_rows(ahead, {"items": more})["items"]
        assert pulled == [] and np.array_equal(found, initial_rows(ITEMS, more))
        session.done()


@promise("Pulls of ids without rows make none.")
def test_reading_makes_no_rows(tmp_path: Path) -> None:
    with serving(out=tmp_path) as cluster, connect(cluster) as session:
        grant = granted(session)
        for start in range(0, 1000, 100):
            session.lookup("items", np.arange(start, start + 100))
        session.pull(grant, rows={"items": np.arange(5000)})
        shard = cluster.servers[0].probe.shard
        assert [table.count for table in shard.tables.tables] == [0, 0]


@promise("Ids may have any shape, and be none.")
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (), (1, 1)])
def test_ids_may_have_any_shape_and_be_none(shape: tuple[int, ...]) -> None:
    with serving(2) as cluster, connect(cluster) as session:
        grant, ids = granted(session), np.full(shape, -(2**63))
        _, rows = session.pull(grant, rows={"items": ids})
        assert rows["items"].shape == session.lookup("items", ids)[0].shape == (*shape, DIM)
        session.push(grant, {}, rows={"items": (ids, np.ones((*shape, DIM)))})
        session.commit(grant, samples=1)


@promise("What rows cannot have is refused before anything starts.")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["policy.name=median", "policy.fewest=1"], "median"),
        (["policy.name=easgd"], "elastic"),
        (["policy.name=dc-asgd-a"], "adaptive-taylor"),
        (["policy.name=gap-aware"], "gap-aware"),
        (["optimizer.name=lamb"], "lamb"),
        (["optimizer.weight_decay=0.1"], "weight_decay"),
    ],
)
def test_what_rows_cannot_have_is_refused_when_the_job_begins(settings: list[str], expected: str) -> None:
    with serving(overrides=settings) as cluster, pytest.raises(Refused, match=expected):
        connect(cluster).close()


def test_workers_of_one_job_have_the_same_tables() -> None:
    with serving() as cluster, connect(cluster, "a") as first:
        assert first.ready() is not None
        for tables in ([], [ITEMS], [USERS, ITEMS], [ITEMS, TableSpec("users", 3)]):
            with pytest.raises(Refused):
                connect_link(cluster.hosts, VARIABLES, name="b", tables=tables).close()


def test_gradients_that_are_not_finite_or_fit_no_key_are_refused_and_change_nothing() -> None:
    with serving(servers=2) as cluster, connect(cluster) as session, ExitStack() as after:
        grant = granted(session)
        bad = np.ones((2, DIM), np.float32)
        bad[1, 2] = np.nan
        for rows, error in (
            ({"items": ([1, 2], bad)}, PayloadRefused),
            ({"items": ([1, 2], np.ones((3, DIM)))}, ValueError),
            ({"things": ([1], np.ones((1, DIM)))}, ValueError),
            ({"items": ([1.5], np.ones((1, DIM)))}, TypeError),
        ):
            with pytest.raises(error):
                session.push(grant, {}, rows=rows)
        after.callback(session.abandon, grant, "over")
        assert not any(table.count for each in cluster.servers for table in each.probe.shard.tables.tables)


def test_a_step_whose_rows_do_not_fit_leaves_the_ticket_in_hand() -> None:
    with serving() as cluster, connect(cluster) as session:
        grant = granted(session)
        flats = session.plan.scatter([np.zeros(spec.shape, np.float32) for spec, _ in VARIABLES])
        keys = unique(np.array([1, 2]))[0]
        with pytest.raises(ValueError, match="one row for each key"):
            session.contribute(grant, flats, samples=1, rows={"items": (keys, np.ones((3, DIM), np.float32))})
        session.contribute(grant, flats, samples=1, rows={"items": (keys, np.ones((2, DIM), np.float32))})
        assert session.done().version == 1


def stepped(out: Path, seeds: range, servers: int, resume: str | None = None) -> str | None:
    """Train a step for each seed, with a checkpoint each; return the digest of the last version."""
    overrides = ["run.checkpoint_every=1 version", "optimizer.name=adagrad", "optimizer.learning_rate=0.5"]
    last = Store(out / "checkpoints")
    with serving(servers, out=out, shared=True, resume=resume, overrides=overrides) as cluster:
        with connect(cluster) as session:
            for seed in seeds:
                before = session.stop
                assert before is None and step(session, seed)
                wait_until(lambda v=seed + 1: saved(last, v), "the version to be saved")
            session.done()
            ids, rows = session.pull_table("items")
        for served in cluster.servers:
            served.ended()
    written = weights_file.load(out / "weights.safetensors")
    assert written.sha256() == Run(out).summary.weights_sha256
    assert np.array_equal(written.tables["items"][0], ids) and np.array_equal(
        written.tables["items"][1], rows
    )
    assert np.array_equal(rows, written.arrays["twin"][ids])
    assert check_run(Run(out)).ok
    return written.sha256()


def saved(store: Store, version: int) -> bool:
    with suppress(CheckpointError):
        return any(store.manifest(name).version == version for name in store.names())
    return False


@promise(
    "A checkpoint is the state at its version; a job that resumes on other servers has the bits of one that "
    "never stopped."
)
@pytest.mark.parametrize("beside", [False, True])
def test_a_job_that_resumes_on_other_servers_has_the_bits_of_one_that_did_not_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    whole = stepped(tmp_path / "whole", range(6), 1)
    if beside:
        # As with large tables: rows are copied beside the loop.
        monkeypatch.setattr("psserver.service.store.shard_part.LARGE_PASS", 0)
    stepped(tmp_path / "run", range(3), 2)
    assert stepped(tmp_path / "run", range(3, 6), 3, resume="latest") == whole


def test_a_loop_fetches_the_rows_of_its_next_batch_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled: list[int] = []
    pull = psworker.data.shard_client.ShardClient.pull_rows

    def counted(self: object, ticket: int, version: int, after: int, rows: Sequence[Keys]) -> object:
        pulled.extend(ticket for keys in rows if keys.size and ticket)
        return pull(self, ticket, version, after, rows)  # type: ignore[arg-type]

    monkeypatch.setattr("psworker.data.shard_client.ShardClient.pull_rows", counted)
    trainer = numpy_problem("clicks", {"batches_per_epoch": 12, "batch_size": 16}, 0)
    settings = ["optimizer.name=adagrad"]
    with serving(overrides=settings, out=tmp_path / "run") as cluster:
        with connect_link(cluster.hosts, trainer.specs, tables=trainer.tables, prefetch=True) as session:
            trainer.attach(session.plan)
            loop.train(session, trainer, 1, lambda *_: None)
        assert cluster.servers[0].ended() == ExitCode.OK
    run = Run(tmp_path / "run")
    assert check_run(run).ok and pulled == []
    assert run.fold().committed == {"w0": 12}
