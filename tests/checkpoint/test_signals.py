"""A signal ends a job with a checkpoint of its last version on all servers, in whatever order it comes to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals

import grpc
import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psserver.checkpoint import Store
from pswire.exits import ExitCode
from pswire.model.plan import make_plan
from tests.asking import ask
from tests.service.peer import Peer, join_request
from tests.service.serving import PATIENCE, VARIABLES, Cluster, refused, serving

# None is due before the end: what is saved is saved for the signal.
RARELY = ["run.checkpoint_every=1000000 versions", "optimizer.name=adam", "optimizer.learning_rate=0.1"]
CODES = {SIGINT: ExitCode.INTERRUPTED, SIGTERM: ExitCode.TERMINATED}


@contextmanager
def running(out: Path, resume: str | None = None) -> Iterator[Cluster]:
    with serving(2, policy="sync", out=out, shared=True, resume=resume, overrides=RARELY) as cluster:
        yield cluster


def signalled(cluster: Cluster, number: Signals, order: tuple[int, ...]) -> None:
    for index in order:
        served = cluster.servers[index]
        served.interrupt(number)
        # It has heard the signal, and done for it what it does at once.
        for _ in range(3):
            ask(served.server.runtime, lambda: None)
    assert [served.ended() for served in cluster.servers] == [CODES[number]] * 2


def digest(out: Path) -> str:
    """Of the weights at the end of a run that passes all checks."""
    run = Run(out)
    assert check_run(run).violations == ()
    assert run.summary.weights_sha256 is not None
    return run.summary.weights_sha256


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest after eight steps."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    with running(out) as cluster, Peer(cluster, "w0") as peer:
        for _ in range(8):
            peer.step()
    return digest(out)


@pytest.mark.parametrize(
    ("number", "order"), [(SIGINT, (0, 1)), (SIGTERM, (1, 0))], ids=["coordinator first", "shard first"]
)
def test_everything_is_saved_and_a_resume_goes_on_with_the_same_bits(
    tmp_path: Path, undisturbed: str, number: Signals, order: tuple[int, ...]
) -> None:
    """Optimizer's state included. Also by servers that share one terminal, or one container's stop."""
    out = tmp_path / "run"
    with running(out) as cluster:
        peer = Peer(cluster, "w0")
        for _ in range(5):
            peer.step()
        signalled(cluster, number, order)
    store = Store(out / "checkpoints")
    (name,) = store.names()
    assert store.verify(name).version == Run(out).summary.versions == 5
    assert (out / "weights.safetensors").is_file()
    with running(out, "latest") as cluster:
        # Also before anybody has come it trains the model that was saved.
        other = join_request(make_plan(VARIABLES[:2], 2), worker="w0", session="another")
        before = cluster.picture()
        with refused(
            grpc.StatusCode.FAILED_PRECONDITION, "trains another model", "expected 3 variables, got 2"
        ):
            cluster.coordinator.Join(other, timeout=PATIENCE)
        assert cluster.picture() == before
        with Peer(cluster, "w0") as peer:
            for _ in range(3):
                peer.step()
    assert digest(out) == undisturbed


def test_a_shard_that_is_told_to_end_alone_does_not_wait_for_ever() -> None:
    """Server 0 goes on, and loses it."""
    with serving(2) as cluster:
        cluster.picture()
        cluster.servers[1].probe.ends_alone_after(0.5)
        cluster.servers[1].interrupt()
        assert cluster.servers[1].ended() == ExitCode.TERMINATED
        assert cluster.servers[0].ended() == ExitCode.UNREACHABLE
