"""Weights that travel as changes: the same bits for every reader, on any number of servers, live and replayed."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from pslab.check.checker import check_run
from pslab.replay.run_folder import prove, replay_of
from pslab.runs.checkpoints import Fate, Shelf
from pslab.runs.folder import Run
from pslab.simulator.store import ShardStore
from psserver.checkpoint import CheckpointError, Store
from psserver.decisions import entries
from psserver.decisions.orders import Apply, Fold, Hold, Install
from psserver.optimizers import build as build_optimizer
from psserver.policies.declarations import BARE
from psserver.shard import Shard
from psserver.shard.deltas import DeltaStream
from pswire.model.plan import VariableSpec, make_plan
from pswire.transport.blocks import INT4, INT8, TOP_K, BlockCodec, runs
from pswire.transport.codecs import WireDtypeError
from pswire.transport.deltas import add_change, checksum, encode_change
from pswire.transport.wire import wire_named
from pswire.v1 import shard_pb2
from psworker.data.changes import KnownVersion
from psworker.errors import SessionError
from psworker.link import Link
from tests.links import connect_link
from tests.promises import promise
from tests.replay.simulated import simulate
from tests.service.serving import granted, serving, wait_until

VARIABLES = (
    VariableSpec("kernel", (50, 1100)),
    VariableSpec("bias", (3,)),
    VariableSpec("mean", (5,), kind="state"),
)
CODECS = (INT8, INT4, TOP_K)
LAYOUT = make_plan(VARIABLES, 1).shards[0]


def ones() -> list[tuple[VariableSpec, np.ndarray]]:
    return [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]


def drawn(seed: int, size: int, scale: float = 0.01) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=size) * scale).astype(np.float32)


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of changes in each answer that had some."""
    counts: list[int] = []
    advance = KnownVersion.advance

    def counted(known: KnownVersion, version: int, chain: np.ndarray, count: int, out: np.ndarray) -> None:
        counts.append(count)
        advance(known, version, chain, count, out)

    monkeypatch.setattr(KnownVersion, "advance", counted)
    return counts


def twin(codec: BlockCodec, change: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The version that a change makes, in whole arrays."""
    decoded, coded = np.empty_like(before), np.zeros(before.size, bool)
    codec.decoder(LAYOUT, decoded).feed(change.data)
    for run in runs(LAYOUT):
        coded[run.start : run.start + run.rows * run.width] = run.coded
    return np.where(coded, before + decoded, decoded)


# The stream itself


@given(st.sampled_from(CODECS), st.integers(0, 2**32), st.sampled_from([1e-40, 1e-3, 1.0, 1e30]))
def test_what_a_change_leaves_out_comes_with_the_next(codec: BlockCodec, seed: int, scale: float) -> None:
    """A reader that adds the changes has the published bits; what is missing never exceeds what encoding leaves."""
    exact, shown = np.zeros(LAYOUT.elements, np.float32), np.zeros(LAYOUT.elements, np.float32)
    reader = shown.copy()
    for step in range(4):
        exact = exact + drawn(seed + step, exact.size, scale)
        published = np.empty_like(shown)
        change, found, _ = encode_change(codec, LAYOUT, exact, shown, published)
        assert add_change(codec, LAYOUT, change, reader) == found == checksum(published)
        assert reader.tobytes() == published.tobytes() == twin(codec, change, shown).tobytes()
        before, shown = np.abs(exact - shown).max(), published
        assert np.abs(exact - shown).max() <= before
    # Short rows and state are never rounded.
    raw = slice(LAYOUT.trainable - 3, LAYOUT.elements)
    assert shown[raw].tobytes() == exact[raw].tobytes()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: str(codec.name))
def test_elements_whose_change_overflows_keep_their_published_values(codec: BlockCodec) -> None:
    """The others are encoded as if these had not changed, and a reader adds the same change."""
    stream, most = DeltaStream(codec, LAYOUT), np.finfo(np.float32).max
    before, out = drawn(3, LAYOUT.elements), np.empty(LAYOUT.elements, np.float32)
    before[::7] = most
    wanted = drawn(4, LAYOUT.elements)
    wanted[::7] = -most
    stream.begin(before)
    stream.spare[...] = wanted
    kept = stream.make(before, out)
    assert kept is not None
    coded = np.zeros(LAYOUT.elements, bool)
    for run in runs(LAYOUT):
        coded[run.start : run.start + run.rows * run.width] = run.coded
    bad = (np.arange(LAYOUT.elements) % 7 == 0) & coded
    assert kept.tolist() == bad.tolist()
    assert (out[bad] == before[bad]).all() and np.isfinite(out).all()
    tame = np.where(bad, before, wanted)
    change, total, none = encode_change(codec, LAYOUT, tame, before, again := np.empty_like(out))
    assert none is None and again.tobytes() == out.tobytes()
    stream.publish(1)
    reader = before.copy()
    (sent,) = stream.chain(0, checksum(before), 1) or ()
    assert sent.tobytes() == change.tobytes()
    assert add_change(codec, LAYOUT, sent, reader) == total and reader.tobytes() == out.tobytes()


def test_a_published_number_that_rounding_makes_infinite_stays() -> None:
    """The change is finite, and its nearest level is larger than it: the sum would be infinite."""
    most = np.finfo(np.float32).max
    before, wanted, out = (np.zeros(LAYOUT.elements, np.float32) for _ in range(3))
    first = next(run.start for run in runs(LAYOUT) if run.coded)
    second = first + 1
    # Beside a change of the largest number, int8 sends 0 or 1 / 127 of it.
    wanted[[first, second]] = most
    before[second] = most - most / np.float32(127) * np.float32(0.6)
    _, _, kept = encode_change(INT8, LAYOUT, wanted, before, out)
    assert kept is not None and np.flatnonzero(kept).tolist() == [second]
    assert out[second] == before[second] and out[first] == pytest.approx(most)


def test_a_stream_knows_few_changes_and_whose_base_is_its_own() -> None:
    stream, shown = DeltaStream(INT8, LAYOUT), np.zeros(LAYOUT.elements, np.float32)
    stream.begin(shown)
    sums = [checksum(shown)]
    for version in range(1, 7):
        stream.spare[...] = stream.exact + drawn(version, LAYOUT.elements)
        out = np.empty_like(shown)
        assert stream.make(shown, out) is None
        stream.publish(version)
        shown = out
        sums.append(checksum(shown))
    # Three changes in int8 are shorter than a version, four are not.
    assert [stream.covers(base, 6) for base in range(7)] == [False, False, False, True, True, True, True]
    assert stream.chain(3, sums[3] ^ 1, 6) is None and stream.chain(6, sums[6] ^ 1, 6) is None
    # Of a version that the reader has, nothing comes; the last ones are known, and no other.
    assert [stream.chain(base, sums[base], base) for base in range(7)] == [None] * 3 + [[]] * 4
    assert [stream.covers(base, base) for base in range(7)] == [False] * 3 + [True] * 4
    found = stream.chain(4, sums[4], 5)
    assert found is not None and len(found) == 1
    assert stream.chain(2, sums[2], 5) is None


def test_a_reader_takes_only_changes_that_fit() -> None:
    known = KnownVersion(INT8, LAYOUT)
    out = np.empty(LAYOUT.elements, np.float32)
    with pytest.raises(SessionError, match="at most 0 changes"):
        known.buffer(1, 5)
    known.take(4, np.ones_like(out))
    assert known.base == shard_pb2.Base(version=4, checksum=checksum(np.ones_like(out)))
    with pytest.raises(SessionError, match="at most 3 changes"):
        known.buffer(4, 8)
    chain = known.buffer(1, 5)
    chain[:] = 0xFF
    with pytest.raises(SessionError):
        known.advance(5, chain, 1, out)
    # What it has now is unknown: the next version comes whole.
    assert known.base is None
    with pytest.raises(SessionError, match="version 5 for known, and none is here"):
        known.repeat(5, out)
    known.take(5, np.ones_like(out))
    known.repeat(5, out)
    assert out.tobytes() == np.ones_like(out).tobytes()
    with pytest.raises(SessionError, match="version 6 for known, and version 5 is here"):
        known.repeat(6, out)


# A shard


def run(shard: Shard, steps: range) -> None:
    for step in steps:
        shard.execute(Hold(step, shard.version, None, False, "w0"))
        slot = shard.begin(step)
        shard.checks.copy_in(slot, drawn(step, LAYOUT.elements, 1.0)[: shard.layout.elements], 0)
        shard.staging.finish(slot)
        shard.execute(Apply(shard.version + 1, 1.0, 1.0, (Fold(step, 1.0),)))


def begun(codec: BlockCodec | None = INT8) -> Shard:
    shard = Shard(
        make_plan(VARIABLES, 1), 0, build_optimizer({"name": "adam", "learning_rate": 0.01}), deltas=codec
    )
    shard.execute(Hold(0, 0, None, True, "w0"))
    slot = shard.begin(0)
    shard.checks.copy_in(slot, np.ones(LAYOUT.elements, np.float32), 0)
    shard.staging.finish(slot)
    shard.execute(Install(0))
    return shard


@promise("A restart in the middle of a chain changes no bits.")
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_saved_shard_goes_on_with_the_same_bits(codec: BlockCodec) -> None:
    whole, saved = begun(codec), begun(codec)
    run(whole, range(1, 7))
    run(saved, range(1, 4))
    state = saved.state()
    assert state.deltas == codec.name
    going_on = Shard(saved.plan, 0, saved.optimizer, deltas=codec)
    going_on.restore(state)
    run(going_on, range(4, 7))
    assert going_on.arena.values(6).tobytes() == whole.arena.values(6).tobytes()
    assert going_on.stream.exact.tobytes() == whole.stream.exact.tobytes() != whole.arena.values(6).tobytes()


# Sessions


@pytest.mark.parametrize(
    ("codec", "transport", "servers"), list(zip(CODECS, ("grpc", "socket", "auto"), (1, 2, 1), strict=True))
)
def test_a_worker_reads_what_its_server_publishes(
    codec: BlockCodec, transport: str, servers: int, chains: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a twin that computes both kinds of weights for itself."""
    # Chunks cut scales and rows.
    monkeypatch.setattr("pswire.transport.frames.CHUNK_BYTES", 999)
    with (
        serving(servers=servers) as cluster,
        connect_link(
            cluster.hosts, ones(), wire_dtype=f"float32/{codec.name}", transport=transport
        ) as session,
    ):
        shards = session.plan.shards
        exact = [np.ones(shard.elements, np.float32) for shard in shards]
        shown = [flat.copy() for flat in exact]
        for step in range(5):
            grant = granted(session)
            for got, expected in zip(session.pull_flat(grant), shown, strict=True):
                assert got.tobytes() == expected.tobytes()
            gradients = [drawn(10 * step + n, flat.size) for n, flat in enumerate(exact)]
            session.contribute(grant, gradients, samples=1)
            for n, (shard, gradient) in enumerate(zip(shards, gradients, strict=True)):
                moved = gradient.copy()
                # sgd with a learning rate of 1; state is added.
                moved[: shard.trainable] *= -1
                exact[n] = exact[n] + moved
                published = np.empty_like(shown[n])
                encode_change(codec, shard, exact[n], shown[n], published)
                shown[n] = published
        assert chains == [1] * 4 * servers
        assert session.dtypes == ("float32",)


def trained(session: Link, seed: int) -> tuple[int, bytes]:
    """Work on one ticket. Return the version that it began with, and its bits."""
    grant = granted(session)
    (got,) = session.pull_flat(grant)
    bits = got.tobytes()
    session.contribute(grant, [drawn(seed, LAYOUT.elements)], samples=1)
    return grant.version, bits


@promise("A version by changes is the version that came whole.")
def test_workers_that_fall_behind_get_longer_chains_or_the_whole_version(
    chains: list[int], tmp_path: Path
) -> None:
    """Two workers that read versions in different ways end with the bits that the server writes."""
    with serving(policy="async", out=tmp_path, overrides=["run.versions=21"]) as cluster:
        arguments = {"wire_dtype": "int8/int8", "transport": "socket"}
        with connect_link(cluster.hosts, ones(), name="fast", **arguments) as fast:
            trained(fast, 1)
            with connect_link(cluster.hosts, ones(), name="slow", **arguments) as slow:
                for behind in range(1, 6):
                    for step in range(behind):
                        trained(fast, 10 * behind + step)
                    trained(slow, 99)
                assert slow.ready() is None and fast.ready() is None
                ends = [session.pull_final() for session in (fast, slow)]
    written = load_file(tmp_path / "weights.safetensors")
    assert set(chains) == {1, 2, 3}
    plan = make_plan(VARIABLES, 1)
    for flats in ends:
        assert {name: each.tobytes() for name, each in plan.gather_by_name(flats).items()} == {
            name: each.tobytes() for name, each in written.items()
        }


def test_a_version_that_a_worker_has_does_not_come_again(
    chains: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a policy that makes a version of several contributions. Before the first update it does: the servers keep
    no checksum of initial values."""
    repeated: list[int] = []
    repeat = KnownVersion.repeat

    def noted(known: KnownVersion, version: int, out: np.ndarray) -> None:
        repeated.append(version)
        repeat(known, version, out)

    monkeypatch.setattr(KnownVersion, "repeat", noted)
    with (
        serving(policy="k-batch-async", overrides=["policy.aggregate=2"]) as cluster,
        connect_link(cluster.hosts, ones(), wire_dtype="float32/int8", transport="socket") as session,
    ):
        found = [trained(session, seed) for seed in range(6)]
    assert [version for version, _ in found] == [0, 0, 1, 1, 2, 2]
    assert repeated == [1, 2] and chains == [1, 1]
    assert all(first == second for first, second in zip(found[::2], found[1::2], strict=True))


@promise("Another base or checksum gets the whole version.")
def test_a_base_of_another_history_gets_the_whole_version(
    chains: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the servers from an older checkpoint: the numbers are known, the bits are others."""
    monkeypatch.setattr("psworker.data.changes.checksum", lambda values: checksum(values) ^ 1)
    with (
        serving() as cluster,
        connect_link(cluster.hosts, ones(), wire_dtype="float32/int8", transport="grpc") as session,
    ):
        versions = [trained(session, seed)[0] for seed in range(3)]
    assert versions == [0, 1, 2] and not chains


def test_names() -> None:
    wire = wire_named("bfloat16/top-k")
    assert wire.name == "bfloat16/top-k" and wire.deltas is TOP_K and not wire.exact
    assert wire.down.name == "float32" and not wire.same
    with pytest.raises(WireDtypeError):
        wire_named("int8/int9")


# Runs


CASES = [
    ("int4", "async", {}),
    ("top-k", "diloco", {"steps": 3}),
    ("int4", "dc-asgd", {}),
]


@pytest.mark.parametrize(("codec", "policy", "knobs"), CASES, ids=str)
def test_a_simulated_run_and_its_replay(tmp_path: Path, codec: str, policy: str, knobs: dict) -> None:
    sections = {"optimizer": {"name": "sgd", "learning_rate": 0.05}, "simulation": {"problem": "mlp"}}
    run = simulate(tmp_path / "run", policy, knobs, cluster={"wire_dtype": f"float32/{codec}"}, **sections)
    replay = replay_of(run)
    replay.run()
    assert prove(run, replay).holds and check_run(run).ok
    plain = simulate(tmp_path / "plain", policy, knobs, **sections)
    assert run.summary.weights_sha256 != plain.summary.weights_sha256


@promise("Simulated bytes are counted bytes.")
def test_a_simulated_reader_is_sent_changes_where_they_are_shorter() -> None:
    plan, sgd = make_plan(VARIABLES, 2), build_optimizer({"name": "sgd", "learning_rate": 1.0})
    store = ShardStore(plan, sgd, BARE, workers=1, wire_dtype="float32/int8")
    whole = [shard.nbytes for shard in plan.shards]
    assert store.sizes_from(None, 0) == store.sizes_from(0, 1) == whole
    store.execute(entries.Initialise("w0", 1))
    store.push(1, plan.scatter([np.ones(spec.shape) for spec in VARIABLES]))
    store.execute(entries.Install("w0", 1))
    for version in range(1, 6):
        store.execute(entries.Grant("w0", version + 1, version - 1))
        store.push(version + 1, [drawn(version, shard.elements) for shard in plan.shards])
        store.execute(
            entries.Apply(version, 1.0, 1.0, (entries.Part(version + 1, "w0", version - 1, 0, 1.0, 1.0),))
        )
    sizes = [INT8.size(shard) for shard in plan.shards]
    assert store.sizes_from(3, 5) == [2 * size for size in sizes]
    assert store.sizes_from(1, 5) == whole and store.sizes_from(5, 5) == [0, 0]


def stepped(out: Path, seeds: range, *, servers: int, resume: str | None = None) -> str:
    """Train a step for each seed, with a checkpoint each; return the digest of the last version."""
    overrides = ["run.checkpoint_every=1 version", "optimizer.name=adam", "optimizer.learning_rate=0.1"]
    last = Store(out / "checkpoints")
    with serving(servers, out=out, shared=True, resume=resume, overrides=overrides) as cluster:
        with connect_link(cluster.hosts, ones(), wire_dtype="float32/int4", transport="socket") as session:
            for seed in seeds:
                grant = granted(session)
                session.pull_flat(grant)
                gradient = [
                    drawn(seed * 9 + n, spec.size).reshape(spec.shape) for n, spec in enumerate(VARIABLES)
                ]
                session.contribute(grant, session.plan.scatter(gradient), samples=1)
                wait_until(lambda v=grant.version + 1: saved(last, v), "the version to be saved")
    return Run(out).summary.weights_sha256


def saved(store: Store, version: int) -> bool:
    with suppress(CheckpointError):
        return any(store.manifest(name).version == version for name in store.names())
    return False


def test_a_job_that_resumes_on_other_servers_has_the_bits_of_one_that_did_not_stop(tmp_path: Path) -> None:
    whole = stepped(tmp_path / "whole", range(6), servers=1)
    stepped(tmp_path / "run", range(3), servers=2)
    shelf = Shelf(tmp_path / "run")
    assert [each.fate for each in shelf.listed(shelf.store.names())][-1] is Fate.LATEST
    assert stepped(tmp_path / "run", range(3, 6), servers=3, resume="latest") == whole
    assert check_run(Run(tmp_path / "run")).ok


def test_a_checksum_tells_places_and_signs_apart() -> None:
    values = drawn(1, 1000)
    other = values.copy()
    other[[3, 4]] = other[[4, 3]]
    assert len({checksum(values), checksum(other), checksum(-values), checksum(values[:-1])}) == 4
    bits = values.view(np.uint32).astype(object)
    assert checksum(values) == sum((2 * i + 1) * int(each) for i, each in enumerate(bits)) % 2**64
