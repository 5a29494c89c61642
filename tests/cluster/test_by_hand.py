"""The daemons as people start them: by hand, by TF_CONFIG, by ps-lab; and as they stop them."""

import json
import re
import signal

import pytest

from tests.cluster.cluster import ROOT, Cluster, entries_of, member
from tests.promises import promise

pytestmark = [pytest.mark.cluster, pytest.mark.tensorflow]

LINEAR = "examples/linear.py:Linear"


@pytest.mark.nightly
def test_tf_config(cluster: Cluster) -> None:
    """The chief is worker 0."""

    def config(host: str, kind: str, index: int) -> str:
        places = {"ps": [host], "chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
        return json.dumps({"cluster": places, "task": {"type": kind, "index": index}})

    server = cluster.launch(
        "server",
        "-m",
        "psserver",
        "--json",
        "--out",
        str(cluster.out),
        TF_CONFIG=config("127.0.0.1:0", "ps", 0),
    )
    cluster.servers.append(server)
    host = server.wait_event("ready")["address"]
    for kind in ("chief", "worker"):
        worker = cluster.launch(
            kind, "-m", "psworker", "--job", LINEAR, "--json", TF_CONFIG=config(host, kind, 0)
        )
        cluster.workers.append(worker)
    run = cluster.wait_end(worker_codes=[0, 0])
    assert [worker.wait_event("joined")["index"] for worker in cluster.workers] == [0, 1]
    # Training began when both were there, as the cluster of TF_CONFIG says.
    assert entries_of(run, "start")[0]["workers"] == 2
    assert run.summary.contributions["w0"].applied == run.summary.contributions["w1"].applied == 32


def test_a_worker_leaves_at_sigterm(cluster: Cluster) -> None:
    """The others go on at once; and when nobody is left, unfinished work is not taken for done."""
    cluster.start_servers(2, "--workers", "2", timeout=60)
    for index in range(2):
        cluster.start_ps_worker(LINEAR, "--task-index", str(index), "--epochs", "100000")
    cluster.wait_version(5)
    first, second = cluster.workers
    second.send(signal.SIGTERM)
    assert second.wait_exit() == 143
    # Far less than its worker_timeout: nothing had to be found out.
    cluster.wait_more()
    assert member(cluster.status(), "w1").state == "left"
    first.send(signal.SIGTERM)
    assert first.wait_exit() == 143
    assert cluster.status().phase == "training"
    cluster.servers[0].send(signal.SIGTERM)
    run = cluster.wait_end(server_code=143)
    assert [e["reason"] for e in entries_of(run, "leave")] == ["SystemExit: 143"] * 2


def test_a_job_module_that_raises_is_shown(cluster: Cluster) -> None:
    """Before any server is asked."""
    module = cluster.folder / "careless.py"
    module.write_text("rate = 1\n\n\ndef scale(x):\n    return x / 0\n\n\nscale(rate)\n")
    cluster.addresses = ["127.0.0.1:1"]
    worker = cluster.start_ps_worker(f"{module}:Job")
    assert worker.wait_exit() == 6
    assert f"importing the job module {str(module)!r} raised ZeroDivisionError" in worker.errors
    assert f'File "{module}", line 5, in scale' in worker.errors
    assert "psworker/" not in worker.errors


def test_a_loop_of_ones_own(cluster: Cluster) -> None:
    cluster.start_servers(2)
    loop = cluster.launch("loop", str(ROOT / "examples" / "numpy_loop.py"), cluster.hosts)
    cluster.workers.append(loop)
    run = cluster.wait_end(worker_codes=[0])
    assert re.fullmatch(r"w0: all workers are done at version 45, last loss \d\.\d+", loop.lines[-1]), (
        loop.lines
    )
    assert run.summary.versions == 45


@promise("A worker needs gRPC and the generated messages, and nothing else of this project.")
def test_a_worker_in_generated_code(cluster: Cluster) -> None:
    cluster.start_servers(1)
    script = ROOT / "examples" / "grpc_worker.py"
    code = [line for line in script.read_text(encoding="utf-8").split('"""', 2)[2].splitlines() if line]
    assert len(code) <= 65
    assert {line for line in code if "import" in line and ("ps" in line.split()[1])} == {
        "from pswire.v1 import coordinator_pb2 as pb",
        "from pswire.v1 import model_pb2, shard_pb2",
    }
    worker = cluster.launch("generated", str(script), cluster.hosts)
    cluster.workers.append(worker)
    run = cluster.wait_end(worker_codes=[0])
    assert worker.lines[-1].startswith("all workers are done at version 200: w = [ 0.9"), worker.lines
    assert run.summary.versions == 200
