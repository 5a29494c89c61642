"""A codec of a test goes all the way: no part of worker, wire or server knows how it encodes.

int8 with one scale for the payload, and error feedback (Seide et al., "1-bit
stochastic gradient descent", Interspeech 2014, section 3.1): what rounding took
from one payload is added to the next.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest

import psworker
from pslab.replay.run_folder import prove, replay_of
from pswire.addresses import Address
from pswire.model.plan import VariableSpec, make_plan
from pswire.transport.codecs import CODECS, Bytes, Codec, Decoder, Encoder, WireDtypeError
from psworker.data.membership import MemberId
from psworker.data.shard_client import ShardClient
from tests.replay.simulated import simulate
from tests.service.serving import serving

VARIABLES = (VariableSpec("kernel", (50, 20)), VariableSpec("bias", (3,)))
HEAD = 4


class Int8(Codec):
    """Four bytes with the scale (float32), then one byte per element."""

    name = "int8"
    remembers = True
    number = cast(Any, 99)

    def size(self, elements: int) -> int:
        return HEAD + elements if elements else 0

    def encode(self, values: np.ndarray) -> np.ndarray:
        if not values.size:
            return np.empty(0, np.uint8)
        scale = np.float32(np.abs(values).max() / 127) or np.float32(1)
        with np.errstate(invalid="ignore"):
            levels = np.rint(values / scale).astype(np.int8)
        return np.concatenate([np.array([scale], "<f4").view(np.uint8), levels.view(np.uint8)])

    def decoder(self, out: np.ndarray) -> Decoder:
        return Int8Decoder(out)

    def encoder(self, elements: int) -> Encoder:
        return WithErrorFeedback(self, elements)


class Int8Decoder:
    """Takes its bytes cut anywhere, in the scale too."""

    def __init__(self, out: np.ndarray) -> None:
        self._out, self._head, self._done = out, b"", 0

    def feed(self, data: Bytes) -> tuple[int, int]:
        missing = HEAD - len(self._head)
        self._head += bytes(data[:missing])
        levels = np.frombuffer(data[missing:], np.int8)
        start, stop = self._done, self._done + levels.size
        if stop > self._out.size:
            raise WireDtypeError(f"expected {self._out.size} levels, got {stop}")
        if levels.size:
            self._out[start:stop] = levels * np.frombuffer(self._head, "<f4")[0]
        self._done = stop
        return start, stop


class WithErrorFeedback(Encoder):
    def __init__(self, codec: Int8, elements: int) -> None:
        self._int8 = codec
        self._residual = np.zeros(elements, np.float32)
        self._next: tuple[int, np.ndarray] | None = None

    def encode(self, ticket: int, values: np.ndarray) -> np.ndarray:
        wanted = values + self._residual
        payload = self._int8.encode(wanted)
        sent = np.empty_like(wanted)
        self._int8.decoder(sent).feed(payload.data)
        self._next = (ticket, wanted - sent)
        return payload

    def keep(self, ticket: int) -> None:
        if self._next is not None and self._next[0] == ticket:
            self._residual, self._next = self._next[1], None

    def state(self) -> Mapping[str, np.ndarray]:
        return {"residual": self._residual.copy()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self._residual, self._next = state["residual"].copy(), None


@pytest.fixture(autouse=True)
def int8(monkeypatch: pytest.MonkeyPatch) -> Int8:
    codec = Int8()
    monkeypatch.setitem(CODECS, "int8", codec)
    return codec


def ones() -> list[tuple[VariableSpec, np.ndarray]]:
    return [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]


def rounded(codec: Int8, values: np.ndarray) -> np.ndarray:
    out = np.empty(values.size, np.float32)
    codec.decoder(out).feed(codec.encode(values).data)
    return out


@pytest.mark.parametrize("transport", ["grpc", "socket"])
@pytest.mark.parametrize("servers", [1, 2])
def test_both_ways_between_a_session_and_its_servers(
    int8: Int8, transport: str, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient arrives as it was rounded, residual and all, and the version comes back rounded."""
    # Chunks cut the scale, and what the worker sends is not cut where the server cuts.
    monkeypatch.setattr("pswire.transport.frames.CHUNK_BYTES", 999)
    random = np.random.default_rng(7)
    with (
        serving(servers=servers) as cluster,
        psworker.connect(cluster.hosts, ones(), wire_dtype="int8", transport=transport) as session,
    ):
        weights = [rounded(int8, np.ones(shard.elements, np.float32)) for shard in session.plan.shards]
        residuals = [np.zeros_like(flat) for flat in weights]
        for _ in range(3):
            grant = session.ready()
            assert grant is not None
            for got, held in zip(session.pull_flat(grant), weights, strict=True):
                np.testing.assert_array_equal(got, rounded(int8, held))
            gradients = [random.normal(size=flat.size).astype(np.float32) for flat in weights]
            session.contribute(grant, gradients, samples=1)
            for number, gradient in enumerate(gradients):
                wanted = gradient + residuals[number]
                sent = rounded(int8, wanted)
                residuals[number] = wanted - sent
                # sgd with a learning rate of 1.
                weights[number] = weights[number] - sent
        assert set(session.transport) == {transport}
        assert any(residual.any() for residual in residuals)


def test_a_payload_that_was_not_committed_leaves_nothing_behind(int8: Int8) -> None:
    encoder = int8.encoder(4)
    values = np.array([1, 0.3, -0.2, 0.7], np.float32)
    first = encoder.encode(1, values).tobytes()
    assert encoder.encode(1, values).tobytes() == first
    encoder.keep(2)
    assert not encoder.state()["residual"].any()
    encoder.keep(1)
    residual = encoder.state()["residual"]
    assert residual.any()
    other = int8.encoder(4)
    other.restore({"residual": residual})
    assert other.encode(5, values).tobytes() == encoder.encode(5, values).tobytes() != first


def test_another_incarnation_remembers_nothing(int8: Int8, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(int8, "encoder", made.append)
    plan = make_plan(VARIABLES, 1)
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        shard = ShardClient(
            0, Address("127.0.0.1", 1), channel, plan, int8, 1.0, threading.Event(), transport="grpc"
        )
        for incarnation in (0, 0, 1, 1):
            shard.admit(MemberId("job", "w0", incarnation))
    assert made == [1003, 1003]


@pytest.mark.parametrize(
    ("policy", "knobs"), [("sync", {}), ("bounded", {"aggregate": 2, "max_staleness": 0})]
)
def test_a_simulated_run_and_its_replay(
    int8: Int8, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, knobs: dict[str, object]
) -> None:
    """An experiment file names it; what error feedback remembers is remembered again, of dropped payloads too."""
    run = simulate(tmp_path / "run", policy, knobs, cluster={"wire_dtype": "int8"})
    replay = replay_of(run)
    replay.run()
    assert prove(run, replay).holds and replay.result.skipped == 0
    plain = simulate(tmp_path / "plain", policy, knobs)
    assert run.summary.weights_sha256 != plain.summary.weights_sha256
    monkeypatch.setattr(int8, "encoder", lambda elements: Encoder(int8))
    forgetful = simulate(tmp_path / "forgetful", policy, knobs, cluster={"wire_dtype": "int8"})
    assert forgetful.summary.weights_sha256 != run.summary.weights_sha256


def test_what_does_not_decode_is_refused_and_changes_nothing(int8: Int8) -> None:
    """NaN in the scale is found as it would be in an element."""
    with (
        serving() as cluster,
        psworker.connect(cluster.hosts, ones(), wire_dtype="int8", transport="grpc") as session,
    ):
        grant = session.ready()
        assert grant is not None
        session.pull(grant)
        before = cluster.picture()
        flats = [np.full(shard.elements, np.nan, np.float32) for shard in session.plan.shards]
        with pytest.raises(psworker.PayloadRefused, match=r"expected finite numbers, got nan at "):
            session.push_flat(grant, flats)
        assert cluster.picture() == before
