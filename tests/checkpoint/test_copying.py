"""What a server saves is copied beside its event loop: training goes on, and what is written has the saved bits."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psserver.checkpoint import CheckpointError, Store
from psserver.service.store import shard_part
from psserver.shard import ShardState
from psworker.link import Link
from tests.links import connect_link
from tests.service.probe import Probe
from tests.service.serving import PATIENCE, Cluster, serving, wait_until

# A little above what is copied at once.
SIZE = 400_000
# Enough for the model and one worker.
LITTLE = 12 << 20
ADAM = ("optimizer.name=adam", "optimizer.learning_rate=0.1", "run.checkpoint_every=1 version", "run.keep=99")
# The first is taken behind the last step of these tests.


class Held:
    """Copies stand still until `go` is set; `begun` after the first has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | None = None) -> None:
        self.begun, self.go, copied = threading.Event(), threading.Event(), shard_part.copied
        # How many arrays each copy was given to copy into.
        self.spare: list[int] = []

        def slowly(state: ShardState, spare: list[np.ndarray]) -> ShardState:
            self.begun.set()
            assert self.go.wait(PATIENCE)
            if error is not None:
                raise error
            self.spare.append(len(spare))
            return copied(state, spare)

        monkeypatch.setattr(shard_part, "copied", slowly)


def step(session: Link, probe: Probe) -> dict[str, np.ndarray]:
    """The granted version, of which a contribution is made."""
    grant = session.ready()
    assert grant is not None
    weights = session.pull(grant)
    gradient = {name: np.ones_like(values) * (grant.version + 1) for name, values in weights.items()}
    session.push(grant, gradient)
    session.commit(grant, batch=grant.version, samples=1, loss=1.0)
    return {name: values.copy() for name, values in weights.items()}


def saved(out: Path) -> dict[int, dict[str, Any]]:
    """The arrays of server 0 in each complete checkpoint, by version."""
    store, found = Store(out / "checkpoints"), {}
    for name in store.names():
        try:
            about = store.verify(name)
        except CheckpointError:
            continue
        file = "server-0.safetensors"
        found[about.version] = store.arrays(name, file, about.files[file])
    return found


def start(cluster: Cluster) -> Link:
    return connect_link(cluster.hosts, {"w": np.ones(SIZE, np.float32)}, transport="grpc")


def test_training_goes_on_while_a_copy_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop answers, the saved version is read; only the next update waits. What is written has the saved bits."""
    held = Held(monkeypatch)
    with serving(out=tmp_path / "run", overrides=ADAM) as cluster, start(cluster) as session:
        probe = cluster.servers[0].probe
        step(session, probe)
        assert held.begun.wait(PATIENCE)
        first = step(session, probe)
        wait_until(lambda: cluster.status().version == 2, "the next update to be decided")
        assert probe.shard.version == 1
        held.go.set()
        second = step(session, probe)
        wait_until(lambda: len(saved(tmp_path / "run")) >= 2, "two checkpoints")
    found = saved(tmp_path / "run")
    for version, weights in ((1, first), (2, second)):
        if version in found:
            assert found[version][f"version/{version}"].tobytes() == weights["w"].tobytes()
    # Adam's moments behind a gradient of one, not of the two that followed.
    first_moment, second_moment = (found[1][name] for name in sorted(found[1]) if name.startswith("slot/"))
    assert np.allclose(first_moment, 0.1) and np.allclose(second_moment, 0.001)


def test_a_copy_for_which_there_is_no_memory_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning; the update that waited for it goes on."""
    held = Held(monkeypatch, MemoryError)
    with serving(out=tmp_path / "run", overrides=ADAM) as cluster, start(cluster) as session:
        probe = cluster.servers[0].probe
        step(session, probe)
        assert held.begun.wait(PATIENCE)
        step(session, probe)
        held.go.set()
        step(session, probe)
        wait_until(lambda: probe.shard.version >= 2, "the update that waited")
    assert "is NOT saved: server 0 has no memory for a copy" in caplog.text
    assert saved(tmp_path / "run") == {}


def test_a_copy_is_in_the_account_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    with serving(out=tmp_path / "run", overrides=ADAM) as cluster, start(cluster) as session:
        probe = cluster.servers[0].probe
        step(session, probe)
        assert held.begun.wait(PATIENCE)
        # Weights, two arrays of adam, and what is committed meanwhile.
        assert 12 * SIZE <= reserved(cluster) < 20 * SIZE
        held.go.set()
        wait_until(lambda: saved(tmp_path / "run"), "a checkpoint")
        # Arrays for the next copy are kept: weights, and two of adam.
        wait_until(lambda: reserved(cluster) == 12 * SIZE, "its copy to be given back")


def test_no_memory_is_got_for_a_job_without_checkpoints(tmp_path: Path) -> None:
    overrides = tuple(each for each in ADAM if not each.startswith(("run.checkpoint_every", "run.keep")))
    with serving(out=tmp_path / "run", overrides=overrides) as cluster, start(cluster) as session:
        step(session, cluster.servers[0].probe)
        wait_until(lambda: cluster.status().version == 1, "a version")
        assert reserved(cluster) == 0


def test_without_room_for_a_copy_there_is_no_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The model fits and trains; the log says what was expected. Nothing is held for what was not made."""
    with (
        serving(out=tmp_path / "run", overrides=ADAM, memory_limit=LITTLE) as cluster,
        start(cluster) as session,
    ):
        probe = cluster.servers[0].probe
        for _ in range(3):
            step(session, probe)
        wait_until(lambda: cluster.status().version == 3, "training to go on")
        words = "has no room for a copy of what it holds: expected at most 12.0 MiB in all (--memory-limit)"
        wait_until(lambda: words in caplog.text, "the log to say so")
        assert reserved(cluster) == 0
    assert not saved(tmp_path / "run")


def reserved(cluster: Cluster) -> int:
    """On all servers."""
    return sum(served.server.host.memory.reserved for served in cluster.servers)
