"""A job that goes on from a checkpoint trains the model that was saved: a worker with another one is refused."""

from pathlib import Path

import grpc
import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from pswire.model.plan import VariableSpec, make_plan
from tests.service.peer import Peer, join_request
from tests.service.serving import PATIENCE, VARIABLES, Cluster, refused, serving, wait_until

SAVES = ["run.checkpoint_every=1000000v"]


def files(cluster: Cluster, out: Path) -> dict[Path, bytes]:
    """Of the checkpoints and the log, once all that was decided is written: lines wait for a flush."""
    log = out / "decisions.jsonl"
    wait_until(
        lambda: log.read_bytes().count(b"\n") == cluster.picture().executed[0], "the whole log to be written"
    )
    return {path: path.read_bytes() for path in [*out.rglob("*-*/*"), log]}


def refuse(cluster: Cluster, variables: tuple[VariableSpec, ...], *words: str) -> None:
    request = join_request(make_plan(variables, len(cluster.servers)), worker="w0", session="another")
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "this job trains another model", *words):
        cluster.coordinator.Join(request, timeout=PATIENCE)


OTHER_MODELS = {
    "shape": (
        (VariableSpec("dense/kernel", (6, 5)), *VARIABLES[1:]),
        ("expected 'dense/kernel' float32[6, 4]", "got 'dense/kernel' float32[6, 5]"),
    ),
    "fewer": (VARIABLES[:2], ("expected 3 variables, got 2: 'mean' float32[3] (state) is missing",)),
}


@pytest.mark.parametrize(("servers", "other"), [(2, "shape"), (1, "fewer")])
def test_another_model_is_refused_and_the_right_one_goes_on(tmp_path: Path, servers: int, other: str) -> None:
    """Before anybody else has come, and in the middle of the job. Nothing changes by it: not the log either."""
    out, (variables, words) = tmp_path / "run", OTHER_MODELS[other]
    with serving(2, out=out, shared=True, overrides=SAVES) as cluster:
        first = Peer(cluster, "w0")
        for _ in range(3):
            first.step()
    with serving(servers, out=out, shared=True, overrides=SAVES, resume="latest") as cluster:
        before, kept = cluster.picture(), files(cluster, out)
        refuse(cluster, variables, *words)
        assert cluster.picture() == before and files(cluster, out) == kept
        with Peer(cluster, "w0") as peer:
            assert peer.ready().version == 3
            peer.step()
            refuse(cluster, variables, *words)
            peer.step()
    run = Run(out)
    assert check_run(run).violations == ()
    assert run.summary.versions == 5
