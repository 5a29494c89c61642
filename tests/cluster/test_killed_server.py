"""`kill -9` of server 0: what it leaves behind is read by the commands, up to the last whole line."""

from pathlib import Path

import pytest

from pslab.runs.folder import Run
from tests.cluster.cluster import Cluster
from tests.promises import promise
from tests.replay.command import ps_lab

pytestmark = pytest.mark.cluster


@promise("The run folder of a killed server can be read by every command.")
def test_the_run_of_a_killed_server_is_readable(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_servers(2, "--workers", "2", "--policy", "async")
    for _ in range(2):
        cluster.start_worker("--until", str(tmp_path / "never"))
    cluster.wait_version(1)
    log = cluster.out / "decisions.jsonl"
    cluster.wait_for(lambda _: log.stat().st_size > 0, "the log's file has begun")
    cluster.wait_for(lambda _: Run(cluster.out).summary.versions >= 20, "20 versions are in the log's file")
    cluster.servers[0].kill()
    # The last is the room that was kept for the final weights.
    left = ["address", "checkpoints", "decisions.jsonl", "metrics.jsonl", "weights.safetensors.part"]
    assert sorted(path.name for path in cluster.out.iterdir()) == left
    run = cluster.checked_run()
    assert run.summary.versions >= 20 and not run.summary.success
    assert run.unfinished is not None and "cut off" in run.unfinished
    trace = cluster.out.with_name("trace.json")
    for command, *more in (("check",), ("compare",), ("export", "--trace", trace)):
        done = ps_lab(command, cluster.out, *more)
        assert done.code == 0 and "no summary.json" in done.err + done.out, done
    assert Run(cluster.out).summary.contributions.keys() == {"w0", "w1"}
