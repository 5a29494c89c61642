"""A server without a copy is given one: its bytes, what is refused of them, and three servers in this process."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import psworker
from psserver.coordinator.inputs import Requested
from psserver.options import Options
from psserver.replication import StableMemory, begin, first_config
from psserver.service.errors import RequestRefused
from psserver.service.guard.memory import Memory
from psserver.service.life import replicating
from psserver.service.life.replicating import LOG_SHARE
from psserver.service.replicas import inputs, lending, transfer
from psserver.service.replicas.disk import Promises, Remembered
from psserver.service.replicas.learning import Arrival
from psserver.service.replicas.lending import Lent
from psserver.service.replicas.shell import Shell
from psserver.service.replicas.transfer import CopyError, WholeCopy
from psserver.service.replicas.wire import PIECE
from psserver.shard import ShardState, copied
from psserver.shard.state import ShardFacts
from pswire import protocol
from pswire.v1 import shard_pb2
from tests.asking import ask
from tests.links import connect_link
from tests.service.replicated import Job, copies, made_anew, newest, state_of, train
from tests.service.serving import VARIABLES, Served, wait_until

ARRAYS = {
    "version/3": np.arange(PIECE // 2, dtype=np.float32),
    "slot/m": np.ones((3, 4), np.float32),
    "slot/none": np.zeros(0, np.float32),
}
WHOLE = WholeCopy(7, {"job": "j", "bounds": {"x": float("inf")}}, ARRAYS)


def pieces() -> list[shard_pb2.CopyPiece]:
    return list(WHOLE.pieces(4))


def arrival(limit: int = 1 << 30) -> Arrival:
    return Arrival(Memory(limit, 3))


def test_a_copy_comes_back_from_its_pieces() -> None:
    arriving = arrival()
    for piece in pieces():
        assert not arriving.here and len(piece.data) <= PIECE
        arriving.take(shard_pb2.CopyPiece.FromString(piece.SerializeToString()))
    assert arriving.here
    found = arriving.read()
    assert (found.at, found.about) == (WHOLE.at, WHOLE.about)
    assert found.arrays.keys() == ARRAYS.keys()
    assert all((found.arrays[name] == values).all() for name, values in ARRAYS.items())


@pytest.mark.parametrize(
    "change",
    [
        lambda piece: setattr(piece, "offset", piece.offset + 1),
        lambda piece: setattr(piece, "at", 8),
        lambda piece: setattr(piece, "bytes", piece.bytes + 1),
        lambda piece: setattr(piece, "data", piece.data * 9),
    ],
)
def test_a_piece_that_does_not_follow_is_refused(change: Callable[[Any], None]) -> None:
    arriving = arrival()
    first, second, *_ = pieces()
    arriving.take(first)
    change(second)
    with pytest.raises(RequestRefused):
        arriving.take(second)


def test_a_copy_for_which_there_is_no_memory_is_not_taken() -> None:
    arriving = arrival(limit=PIECE)
    with pytest.raises(CopyError):
        arriving.take(pieces()[0])


def test_arrays_that_are_lent_do_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read where they lie, and outlive the process that has lent them."""
    monkeypatch.setattr(lending, "LARGE", 4)
    state = ShardState(mock.Mock(spec=ShardFacts), ARRAYS)
    lent = Lent(ARRAYS.values())
    places, rest = lent.divided(copied(state, lent.room).arrays)
    assert list(places) == ["version/3"] and rest.keys() == ARRAYS.keys() - places.keys()
    arriving = arrival()
    (piece,) = WholeCopy(7, {"lent": places}, rest).pieces(4)
    arriving.take(piece)
    found = arriving.read()
    assert found.about == {}
    del lent, state, rest
    assert all((found.arrays[name] == values).all() for name, values in ARRAYS.items())
    with pytest.raises(ValueError, match="read-only"):
        found.arrays["version/3"][0] = 1.0


@pytest.mark.parametrize("place", [3, 40, -5])
def test_a_damaged_copy_is_noticed(place: int) -> None:
    arriving, whole = arrival(), pieces()
    damaged = whole[0 if place >= 0 else -1]
    data = bytearray(damaged.data)
    data[place] ^= 1
    damaged.data = bytes(data)
    for piece in whole:
        arriving.take(piece)
    with pytest.raises(CopyError):
        arriving.read()


def test_a_learner_that_falls_behind_slows_the_log_down() -> None:
    """Items wait, in their order, and go on by themselves."""

    class Links:
        links: dict[int, object] = {}
        met: set[int] = set()

        def send(self, *_: object, part: int) -> None: ...

        def forget(self, _: object) -> None: ...

    class Machine:
        upto = 0

        def execute(self, upto: int) -> None:
            self.upto = upto

    async def offered() -> None:
        shell = Shell(begin(0, 1, first_config((0,))), Links(), lambda _: None, formed=True)  # type: ignore[arg-type]
        shell.machine = machine = Machine()  # type: ignore[assignment]
        shell.delay = 0.01
        for number in range(4):
            shell.offer(bytes([number]))
        assert machine.upto == 1
        while machine.upto < 4:
            await asyncio.sleep(0)
        assert [shell.bodies[item] for item in shell.replica.log.tail] == [bytes([n]) for n in range(4)]
        assert shell.bodies.nbytes == 4
        shell.executed(4)
        assert shell.bodies.nbytes == 0

    asyncio.run(offered())


# Three servers


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Job]:
    """A worker has made four versions."""
    with copies(3, tmp_path / "run") as (cluster, session):
        train(session, 4)
        yield cluster, session


def test_a_worker_that_does_not_know_of_replicas_is_told(three: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was given the same servers as all others."""
    cluster, _ = three
    monkeypatch.delenv("PS_REPLICAS")
    with pytest.raises(psworker.Refused, match="give every worker PS_REPLICAS=2"):
        connect_link(cluster.hosts, {"w": np.zeros(4)})


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_server_that_hears_nobody_says_whom_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, comes_back: bool
) -> None:
    monkeypatch.setattr(replicating, "WARN_EVERY", 0.0)
    if comes_back:
        Promises(tmp_path, 2).write(Remembered(0, 0, (StableMemory(0, first_config((0, 1))),)))
    hosts, alone = ",".join(["127.0.0.1:0"] * 3), ("cluster.replicas=2",)
    served = Served(Options(ps_hosts=hosts, task_index=2, overrides=alone, out=tmp_path))
    words = "this server has heard none of them" if comes_back else "all servers must be here once"
    wait_until(
        lambda: f"waiting for server 0, 1: nothing is decided before, because {words}" in caplog.text,
        "the warning",
    )
    served.interrupt()
    served.ended()


def test_a_copy_that_differs_counts_no_more_and_is_made_anew_while_training_goes_on(
    three: Job, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, session = three
    first, second, _ = cluster.servers
    wait_until(lambda: newest(first) == newest(second), "both copies at one version")

    def flip() -> None:
        shard = second.server.host.state.shard
        assert shard is not None
        values = shard.arena.values(shard.version)
        assert values is not None
        # In dense/bias: behind the kernel.
        values[VARIABLES[0].size] += 1.0

    ask(second.server.runtime, flip)
    train(session, 4)
    assert second.ended() is not None
    assert "not the primary's equal" in str(second.server.continuation.again)
    (told,) = [each for each in caplog.records if "copy counts no more" in each.message]
    assert "first in dense/bias" in told.message and "server 1's version" in told.message
    assert "one copy is left" in cluster.status().note
    train(session, 4)
    made_anew(cluster, tmp_path, 1)
    train(session, 3)
    wait_until(lambda: newest(first)[0] >= 15, "the last version")
    made_anew(cluster, tmp_path, 1)


def test_a_copy_that_has_decided_otherwise_counts_no_more(
    three: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the weights are the same: the follower has understood another loss."""
    cluster, session = three
    first, second, _ = cluster.servers
    wait_until(lambda: newest(first) == newest(second), "both copies at one version")
    decode = inputs.decode

    def otherwise(data: bytes) -> tuple[list[inputs.Noted], float]:
        noted, now = decode(data)
        return [_otherwise(each) for each in noted], now

    def _otherwise(noted: inputs.Noted) -> inputs.Noted:
        if not isinstance(noted, tuple) or not isinstance(noted[1], Requested):
            return noted
        request = noted[1].request
        is_commit = isinstance(request, protocol.Commit)
        return (noted[0], replace(noted[1], request=replace(request, loss=9.0))) if is_commit else noted

    monkeypatch.setattr(inputs, "decode", otherwise)
    train(session, 4)
    assert second.ended() is not None
    (told,) = [each for each in caplog.records if "copy counts no more" in each.message]
    assert "first in what the coordinator knows" in told.message


@pytest.mark.parametrize("lends", [True, False])
def test_a_server_that_ended_gets_the_state_of_the_one_that_leads(
    three: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lends: bool
) -> None:
    read = mock.Mock(side_effect=lending.borrowed)
    monkeypatch.setattr(transfer, "borrowed", read)
    monkeypatch.setattr(lending, "LARGE", 4 if lends else 1 << 30)
    cluster, session = three
    first, second, _ = cluster.servers
    second.probe.leave_out()
    second.ended()
    wait_until(lambda: state_of(cluster, 1) == "lost", "the loss")
    train(session, 3)
    made_anew(cluster, tmp_path, 1)
    assert newest(cluster.servers[1])[0] >= 7
    assert {bool(call.args[0]) for call in read.call_args_list} == {lends}
    for served in cluster.servers[:2]:
        # Nothing is kept of the copy.
        host = served.server.host
        # The log's, and what a worker shares.
        assert host.memory.reserved <= int(LOG_SHARE * host.memory.limit) + host.nbytes
