"""A session that receives and sends in the wire dtype, and asks for a payload when its server is ready for it."""

import threading

import ml_dtypes
import numpy as np
import pytest

from psworker.errors import PayloadRefused
from psworker.link import Link
from tests.comparing import same
from tests.links import connect_link
from tests.promises import promise
from tests.sentences import Recorder
from tests.service.serving import PATIENCE, granted, serving

NARROW = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
START = np.random.default_rng(3).standard_normal((3000, 500)).astype(np.float32)


def connect(hosts: str, dtype: str, transport: str = "grpc") -> Link:
    return connect_link(hosts, {"w": START}, wire_dtype=dtype, transport=transport)


@promise("A narrow wire dtype gives the bits of rounding in float32.")
@pytest.mark.parametrize(("name", "servers"), [("bfloat16", 1), ("float16", 2)])
def test_the_bits_are_those_of_a_float32_user(name: str, servers: int) -> None:
    """Three steps each, over several chunks, apart and in one message."""

    def trained(narrow: bool, transport: str = "grpc") -> list[bytes]:
        seen: list[bytes] = []
        with serving(servers=servers) as cluster, connect(cluster.hosts, name, transport) as session:
            assert session.dtypes == (name,)
            for number in range(3):
                grant = granted(session)
                with session.view_flat(grant, narrow=narrow) as weights:
                    assert {w.dtype for w in weights} == {NARROW[name] if narrow else np.dtype(np.float32)}
                    seen += [w.astype(np.float32).tobytes() for w in weights]
                    gradients = [(w.astype(np.float32) * np.float32(0.3)) for w in weights]
                flats = [g.astype(NARROW[name]) for g in gradients] if narrow else gradients
                session.contribute(grant, flats, samples=1, batch=number, ready=number < 2)
            session.done()
            return [*seen, *(w.tobytes() for w in session.pull_final())]

    wide = trained(False)
    assert same(trained(True), wide) and same(trained(True, "socket"), wide)


@pytest.mark.parametrize("name", NARROW)
def test_shared_memory_stays_float32(name: str) -> None:
    with serving() as cluster, connect(cluster.hosts, name, "shared-memory") as session:
        assert session.dtypes == ("float32",)
        grant = granted(session)
        with session.view_flat(grant, narrow=True) as (weights,):
            assert weights.dtype == np.float32
            before = weights.copy()
        session.contribute(grant, [np.full(START.size, 0.3, np.float32)], samples=1, ready=True)
        assert (session.pull_flat(granted(session))[0] == before - np.float32(0.3)).all()


def test_rounding_does_not_depend_on_the_machine() -> None:
    """Shared memory is available here, but was not asked for."""
    with serving() as cluster, connect(cluster.hosts, "bfloat16", "auto") as session:
        assert session.dtypes == ("bfloat16",)
        session.pull_flat(granted(session))
        assert session.transport == ("socket",)


def test_a_gradient_beyond_float16_is_refused_by_name(sentences: Recorder) -> None:
    with serving() as cluster, connect(cluster.hosts, "float16") as session:
        grant = granted(session)
        payload = np.zeros(START.size, np.float32)
        payload[501] = 1e30
        with sentences.raises(PayloadRefused):
            session.contribute(grant, [payload], samples=1)
        session.abandon(grant, "nonfinite")


def test_an_unfit_dtype_is_refused_with_those_that_fit(sentences: Recorder) -> None:
    with serving() as cluster, connect(cluster.hosts, "bfloat16") as session:
        grant = granted(session)
        with sentences.raises(ValueError):
            session.contribute(grant, [np.zeros(START.size, np.float16)], samples=1)
        session.abandon(grant, "seen")


def test_one_servers_payload_travels_while_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second server's gradient comes into being only after the first server has the whole of its own."""
    with serving(servers=2) as cluster, connect(cluster.hosts, "float32") as session:
        grant = granted(session)
        session.pull_flat(grant)
        arrived = threading.Event()
        cluster.servers[0].probe.after_push(monkeypatch, arrived.set)

        def late() -> np.ndarray:
            assert arrived.wait(PATIENCE), "the first payload waits for the second one"
            return np.zeros(session.plan.shards[1].elements, np.float32)

        session.push_flat(grant, [np.zeros(session.plan.shards[0].elements, np.float32), late])
        session.commit(grant, samples=1)
