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
from tests.replay.test_killed_runs import ended, lab

pytestmark = [pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "gated_fit.py"
# The epoch before which the script stands still.
GATED = 2


def fitted(folder: Path, model: str, *options: object, kill: bool) -> Run:
    folder.mkdir()
    out = folder / "run"
    run = ("run", "--script", SCRIPT, "--workers", 2, "--policy", "sync", "--out", out, "--quiet", *options)
    with lab(*run, "--", folder, model) as launcher:
        if kill:
            wait_until((folder / f"epoch-{GATED}").is_file, "a worker at the gate")
            wait_until(lambda: whole(out, 1), "two copies")
            servers(launcher.pid, out / "decisions.jsonl")[0].send_signal(signal.SIGKILL)
        (folder / "gate").touch()
        ended(launcher)
    found = Run(out)
    verdict = check_run(found)
    assert verdict.ok, [str(violation) for violation in verdict.violations]
    return found


@pytest.mark.parametrize("model", ["dense", "tables"])
def test_a_fit_whose_leading_server_is_killed_ends_with_the_weights_of_one_without_a_loss(
    tmp_path: Path, model: str
) -> None:
    alone = fitted(tmp_path / "alone", model, kill=False)
    killed = fitted(tmp_path / "killed", model, "--servers", 3, "--replicas", 2, kill=True)
    assert len(killed.summary.tables) == (model == "tables")
    assert killed.summary.weights_sha256 == alone.summary.weights_sha256 is not None
    facts = [entry.fact for entry in killed.decisions()]
    (first,) = (fact for fact in facts if isinstance(fact, entries.Job))
    assert first.optimizer["name"] == "adam" and first.optimizer["learning_rate"] == 0.01
    assert not [fact for fact in facts if isinstance(fact, entries.Restore)]
