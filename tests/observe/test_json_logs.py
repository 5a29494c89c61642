"""`--log-format json` of real processes: every line of standard error parses and has its event."""

import json
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster, Process

JSON = ("--log-format", "json")


def lines(process: Process) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in process.errors.splitlines()]
    for line in found:
        assert line["event"] and line["message"], line
    return found


def test_every_line_of_log_format_json_parses(cluster: Cluster) -> None:
    cluster.start_servers(2, "--workers", "2", timeout=6.0, every=JSON)
    for index in ("0", "1"):
        cluster.start_worker("--task-index", index, "--seconds", "0.02")
    cluster.wait_version(3)
    cluster.workers[1].kill()
    cluster.wait_state("w1", "left")
    cluster.workers[0].say("end")
    first, second = (lines(server) for server in cluster.servers)
    assert {line["worker"] for line in first if line["event"] == "worker_joined"} == {"w0", "w1"}
    # The other one may be lost for a while, too, where it is kept from running.
    [lost] = [line for line in first if line["event"] == "connection_lost" and line["worker"] == "w1"]
    assert lost["level"] == "warning" and lost["logger"] == "ps-server"
    assert [line["event"] for line in second][:1] == ["following"]


def test_the_last_words_of_a_command_are_a_line(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        wrong = cluster.launch(
            "server", "-m", "psserver", "--policy", "snyc", "--ps-hosts", "127.0.0.1:0", *JSON
        )
        assert wrong.wait_exit() == 2
        [line] = lines(wrong)
        wrong.close()
    assert line["event"] == "failed" and line["exit_code"] == 2 and "did you mean" in line["message"]
