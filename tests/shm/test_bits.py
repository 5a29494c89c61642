"""A transport is how payloads travel and nothing else: the same bits, alone and in company."""

import numpy as np
import pytest

from psworker.errors import PayloadRefused
from tests.links import connect_link
from tests.sentences import Recorder
from tests.service.serving import serving
from tests.shm.sessions import VARIABLES, begun, connect, gradient, granted, step, together


def final(
    transports: list[str], how: str = "contribute", servers: int = 1, policy: str = "sync"
) -> list[bytes]:
    with serving(servers, workers=len(transports), policy=policy) as cluster:
        return together(cluster.hosts, transports, steps=6, how=how)


@pytest.mark.parametrize(("how", "servers"), [("contribute", 1), ("apart", 2), ("slots", 1), ("parts", 2)])
def test_one_worker(how: str, servers: int) -> None:
    expected = final(["grpc"], "apart", servers, "async")
    assert final(["shared-memory"], how, servers, "async") == expected
    assert final(["socket"], how, servers, "async") == expected


def test_three_workers_at_a_barrier() -> None:
    expected = final(["grpc"] * 3, servers=2)
    assert final(["shared-memory", "grpc", "socket"], servers=2) == expected


def test_the_sum_lies_in_the_first_workers_slot() -> None:
    """Two contributions per update: one slot of a worker is the sum while it fills the other."""

    def trained(transport: str) -> bytes:
        knobs = ("policy.aggregate=2", "policy.max_staleness=9")
        with serving(workers=2, policy="bounded", overrides=knobs) as cluster:
            with connect(cluster.hosts, transport, "a") as a, connect(cluster.hosts, transport, "b") as b:
                first = dict(zip((a, b), begun(a, b), strict=True))
                for number, turn in enumerate([a, b, a, a, a, b, b, b]):
                    step(turn, number, grant=first.pop(turn, None))
                grant = granted(a)
                values = a.pull_flat(grant)[0]
                assert grant.version == 4
                return values.tobytes()

    assert trained("shared-memory") == trained("grpc") == trained("socket")


def test_the_wire_dtype_is_for_the_wire() -> None:
    ones = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
    with serving() as cluster:
        with connect_link(cluster.hosts, ones, wire_dtype="bfloat16", transport="shared-memory") as session:
            before = step(session, 0)
            payload = gradient(session, 0)[0] + np.float32(0.01) * before[0]
            now = session.pull_flat(granted(session))[0]
            trainable = session.plan.shards[0].trainable
            assert (now[:trainable] == before[0][:trainable] - payload[:trainable]).all()


def test_nan_in_a_slot_is_named_and_costs_nothing(sentences: Recorder) -> None:
    with serving(servers=2) as cluster, connect(cluster.hosts) as session:
        step(session, 0)
        grant = granted(session)
        session.pull_flat(grant)
        slots = session.slot_flat(grant)
        for slot in slots:
            slot[...] = 0.0
        slots[0][0] = np.nan
        with pytest.raises(PayloadRefused) as refused:
            session.push_flat(grant, slots)
        sentences.check(refused)
        slots[0][0] = 0.0
        again = session.slot_flat(grant)
        assert again[0] is slots[0], "the slot was not given back"
        again[1][...] = 0.0
        session.push_flat(grant, again)
        session.commit(grant, samples=1)
        assert session.done().version == 2
