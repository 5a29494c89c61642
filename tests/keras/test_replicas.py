"""`model.fit` with replicas: the servers take the script's optimizer, and the one that leads may be killed."""

import signal
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from pswire.decisions import entries
from tests.cluster.cluster import wait_until
from tests.cluster.launched import servers
from tests.cluster.replicated_run import whole
from tests.repetitions import usually
from tests.replay.test_killed_runs import ended, lab

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "gated_fit.py"
# The first epoch before which the script stands still.
GATED = 2


def fitted(folder: Path, model: str, kills: int, *options: object, kill: bool) -> Run:
    """A run with so many gates; with `kill` the server that leads is killed at each of them."""
    folder.mkdir()
    out = folder / "run"
    run = ("run", "--script", SCRIPT, "--workers", 2, "--policy", "sync", "--out", out, "--quiet", *options)
    with lab(*run, "--", folder, model, kills) as launcher:
        for epoch in range(GATED, GATED + kills):
            if kill:
                wait_until((folder / f"epoch-{epoch}").is_file, "a worker at the gate")
                wait_until(lambda: whole(out, 1), "two copies")
                servers(launcher.pid, out / "decisions.jsonl")[0].send_signal(signal.SIGKILL)
            (folder / f"gate-{epoch}").touch()
        ended(launcher)
    found = Run(out)
    verdict = check_run(found)
    assert verdict.ok, [str(violation) for violation in verdict.violations]
    return found


@pytest.mark.parametrize(("model", "kills"), usually([("dense", 2)], [("dense", 5), ("tables", 5)]))
def test_a_fit_whose_leading_servers_are_killed_ends_with_the_weights_of_one_without_a_loss(
    tmp_path: Path, model: str, kills: int
) -> None:
    alone = fitted(tmp_path / "alone", model, kills, kill=False)
    killed = fitted(tmp_path / "killed", model, kills, "--servers", 3, "--replicas", 2, kill=True)
    # A takeover leaves the log of the server before.
    assert len(list(killed.path.glob("decisions.before-epoch-*.jsonl"))) >= kills
    assert len(killed.summary.tables) == (model == "tables")
    assert killed.summary.weights_sha256 == alone.summary.weights_sha256 is not None
    facts = [entry.fact for entry in killed.decisions()]
    (first,) = (fact for fact in facts if isinstance(fact, entries.Job))
    assert first.optimizer["name"] == "adam" and first.optimizer["learning_rate"] == 0.01
    assert not [fact for fact in facts if isinstance(fact, entries.Restore)]
