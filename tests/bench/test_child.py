"""Processes under measurement: what they say, how they fail, and that they end."""

import psutil
import pytest

from benchmarks.loads import Load, even
from benchmarks.peers.child import Child, ChildError, together
from benchmarks.peers.ours import Ours, WorkerPool

PROGRAM = """
from benchmarks.programs.json_commands import serve
print("chatter")
def double(number): return {"twice": 2 * number}
def fail(): raise ValueError("as planned")
serve({"double": double, "fail": fail})
"""


@pytest.fixture
def child(tmp_path):
    child = Child("doubler", ["-c", PROGRAM], tmp_path / "child.log")
    yield child
    child.close()
    assert not psutil.pid_exists(child.pid)


def test_questions_and_answers(child):
    assert child.ask("double", number=4) == {"twice": 8}
    assert together([child], "double", number=3) == [{"twice": 6}]


def test_a_failure_says_whose_and_why(child):
    with pytest.raises(ChildError, match="(?s)doubler failed:.*as planned"):
        child.ask("fail")


def test_a_child_that_ends_is_noticed_with_the_end_of_its_log(tmp_path):
    child = Child("brief", ["-c", "import sys; sys.exit('out of luck')"], tmp_path / "child.log")
    with pytest.raises(ChildError, match="(?s)brief has ended.*out of luck"):
        child.receive()
    child.close()


@pytest.mark.cluster
def test_real_servers_and_workers_take_steps_and_are_gone(tmp_path):
    pool = WorkerPool(tmp_path)
    peer = Ours("grpc", "ours", pool, tmp_path, {"wire_dtype": "bfloat16"})
    load = Load("small", even(0.01, 2), workers=2, servers=2)
    try:
        peer.prepare(load)
        first, second = peer.measure(3), peer.measure(5)
        peer.release()
    finally:
        peer.close()
        pool.close()
    assert (first.steps, second.steps) == (6, 10)
    assert second.server_cpu >= 0 and second.seconds > 0
    children = psutil.Process().children(recursive=True)
    left = [each.cmdline() for each in children if each.status() != psutil.STATUS_ZOMBIE]
    assert not [line for line in left if "psserver" in line or "benchmarks.programs.ours" in line]
