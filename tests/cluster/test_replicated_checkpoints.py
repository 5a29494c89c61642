"""A job with replicas that lost both copies goes on from a checkpoint, which the server that follows has written."""

from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from tests.cluster.cluster import PATIENCE, Cluster, entries_of, wait_until
from tests.cluster.launched import servers
from tests.cluster.replicated import (
    GATE,
    LATER,
    MORE,
    SAVING,
    command,
    committed_once,
    end,
    open_gates,
    saved,
    sha256,
    start,
    start_again,
    undisturbed,
    wait_for_the_gate,
    wait_state,
)
from tests.cluster.replicated_run import BATCHES, GATES, run, run_alone, status, whole
from tests.repetitions import usually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

COPIES = ("--quiet", "--replicas", "2", "--set", "cluster.servers=3", "--set", "run.checkpoint_every=3v")


def test_a_server_that_begins_anew_alone_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the others, who are not there: it writes nothing, and takes part if it is started as before."""
    expected = undisturbed(tmp_path / "alone", 1000, MORE)
    monkeypatch.setenv("PS_REPLICAS", "2")
    (tmp_path / "mistaken").mkdir()
    with Cluster(tmp_path / "mistaken") as cluster:
        start(cluster, "sync", batches=MORE, more=SAVING)
        wait_for_the_gate(cluster, GATE)
        promised = cluster.out / "replication" / "server-0.json"
        before, log = promised.read_bytes(), cluster.out / "decisions.jsonl"
        cluster.servers[0].kill()
        wait_state(cluster, 1, 0, "lost")
        lines = log.read_bytes()
        as_before = command(cluster, 0, "sync", *SAVING)
        mistaken = cluster.launch("server-0-mistaken", *as_before, "--resume", "latest")
        mistaken.wait_event("ready")
        # It reaches them, and they refuse it.
        open_gates(cluster, "gate")
        wait_for_the_gate(cluster, LATER)
        mistaken.send(SIGTERM)
        assert mistaken.wait_exit() == 143
        mistaken.close()
        assert promised.read_bytes() == before and log.read_bytes().startswith(lines)
        start_again(cluster, 0, "sync", *SAVING)
        wait_state(cluster, 1, 0, "in sync")
        end(cluster)
        assert sha256(cluster) == expected
        committed_once(cluster, MORE)


@pytest.mark.parametrize("tables", usually([128], soak=[0]))
def test_both_copies_are_killed_at_once_and_the_run_is_resumed(tmp_path: Path, tables: int) -> None:
    expected, killed = run_alone(tmp_path / "alone", tables=tables), tmp_path / "killed"
    killed.mkdir()
    out = killed / "run"
    with run(killed, *COPIES, "--restarts", "0", tables=tables) as launcher:
        try:
            wait_until(lambda: whole(out, GATES[0]), "the first gate")
            wait_until(lambda: 9 in saved(out), "a checkpoint of version 9")
            for each in servers(launcher.pid, out / "decisions.jsonl"):
                each.send_signal(SIGKILL)
            said, _ = launcher.communicate(timeout=4 * PATIENCE)
        finally:
            launcher.kill()
        assert launcher.returncode == 3, said
    # All of them, from the checkpoint, with a copy for server 1.
    with run(killed, *COPIES, "--resume", "latest", tables=tables) as launcher:
        try:
            for gate in GATES:
                wait_until(lambda at=gate: whole(out, at), f"version {gate} with two copies")
                (killed / str(gate)).touch()
            said, _ = launcher.communicate(timeout=4 * PATIENCE)
        finally:
            launcher.kill()
    assert launcher.returncode == 0, said
    found = Run(out)
    verdict = check_run(found)
    assert verdict.ok, [str(violation) for violation in verdict.violations]
    (restore,) = entries_of(found, "restore")
    assert restore["version"] == 9
    assert found.summary.weights_sha256 == expected
    assert found.summary.versions == BATCHES and max(saved(out)) == BATCHES
    if tables:
        files = [len(list(each.glob("server-0-rows-*"))) for each in out.glob("checkpoints/*/")]
        assert min(files) >= 1 and max(files) > 1, "all rows, and increments"
    assert status(out) is None
