"""Reading in place: what is read never changes, and a reader that stops holds nobody up for long."""

import gc
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import psworker
from tests.service.serving import PATIENCE, serving, wait_until
from tests.shm.sessions import begun, connect, granted, segments_of, step


def test_a_view_is_the_servers_own_memory_and_cannot_be_written() -> None:
    with serving() as cluster, connect(cluster.hosts) as session:
        step(session, 0)
        grant = granted(session)
        with session.view_flat(grant) as (weights,):
            shard = cluster.servers[0].probe.shard
            assert not weights.flags.writeable
            assert weights.tobytes() == shard.arena.values(1).tobytes()
            assert shard.holds.of(grant.ticket) == 1
        session.abandon(grant, "seen")


def test_a_pull_after_the_view_is_sent() -> None:
    """The worker has said that it has read; the version may go at any time."""
    with serving() as cluster, connect(cluster.hosts) as session:
        grant = granted(session)
        with session.view_flat(grant) as (weights,):
            seen = weights.copy()
        assert session.pull_flat(grant)[0].tobytes() == seen.tobytes()
        with session.view_flat(grant) as (weights,):
            assert weights.flags.writeable, "expected an array of the worker's own"
        session.abandon(grant, "seen")


def test_an_update_goes_on_when_a_reading_that_it_waited_for_ends() -> None:
    """Also where the reading began while the update waited: the limit is not waited for."""
    with serving(read_limit=3600.0, arena_versions=2) as cluster:
        slow, quick = connect(cluster.hosts, name="slow"), connect(cluster.hosts, name="quick")
        held = granted(slow)
        step(quick, 0)
        more = threading.Thread(target=step, args=(quick, 1))
        more.start()
        wait_until(lambda: cluster.status().version == 2, "the decision about an update that has no buffer")
        with slow.view_flat(held) as (weights,):
            assert not weights.flags.writeable
        more.join(PATIENCE)
        assert not more.is_alive()
        wait_until(lambda: cluster.servers[0].probe.shard.version == 2, "the update")
        slow.abandon(held, "seen")
        slow.close()
        quick.close()


def test_many_workers_copy_rather_than_hold_versions() -> None:
    with serving(workers=3) as cluster:
        with connect(cluster.hosts) as a, connect(cluster.hosts) as b, connect(cluster.hosts) as c:
            grant = begun(a, b, c)[0]
            with a.view_flat(grant) as (weights,):
                assert weights.flags.writeable
            a.abandon(grant, "seen")


def test_a_reader_whose_version_is_taken_back_keeps_what_it_reads(caplog: pytest.LogCaptureFixture) -> None:
    """Its memory is never written again, so that even its late gradient is the right one."""
    with serving(read_limit=0.2) as cluster:
        # In this order: two workers may hold a version, the third is told to copy.
        with connect(cluster.hosts, name="slow") as slow, connect(cluster.hosts, name="third") as third:
            other = connect(cluster.hosts, name="other")
            held = granted(slow)
            with slow.view_flat(held) as (weights,):
                seen = weights.copy()
                step(other, 0)
                also_held = granted(third)
                with third.view_flat(also_held):
                    for number in range(1, 6):
                        step(other, number)
                    assert "taken back" in caplog.text
                    assert weights.tobytes() == seen.tobytes()
                slow.push_flat(held, [np.zeros_like(weights)])
            slow.commit(held, samples=1)
            wait_until(slow.dispositions, "the late contribution's fate")
            third.abandon(also_held, "seen")
            other.close()
            # What was left to the reader is let go by both: three versions remain.
            assert cluster.servers[0].probe.buffers <= 3


def worker(program: str, hosts: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-X", "faulthandler", "-c", program, hosts]
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root,
    )


def assert_ends(process: subprocess.Popen[str]) -> None:
    """One that goes on says where it stands."""
    try:
        process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        raise AssertionError(f"the worker goes on:\n{process.communicate()[1]}") from None


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


KILLED = """
import sys, threading
from tests.shm.sessions import connect, granted, step
session = connect(sys.argv[1], name="killed")
step(session, 0)
grant = granted(session)
with session.view_flat(grant) as (weights,):
    for slot in session.slot_flat(grant):
        slot[...] = 1.0
    print(session.transport[0], flush=True)
    # A signal between the last look for one and the wait itself would end no wait without a limit.
    while not threading.Event().wait(0.5):
        pass
"""


@pytest.mark.cluster
def test_a_worker_that_is_killed_leaves_no_segment() -> None:
    with serving() as cluster, connect(cluster.hosts, name="other") as other:
        step(other, 0)
        # Other tests' may still wait to be collected.
        mine = segments_of("self")
        killed = worker(KILLED, cluster.hosts)
        assert line(killed) == "shared-memory"
        assert len(segments_of("self") - mine) >= 2, "expected a control word and a slot more"
        killed.kill()
        assert_ends(killed)
        # The arena may have come to its third version meanwhile.
        wait_until(lambda: len(segments_of("self") - mine) <= 1, "the server to let the slots go")
        for number in range(1, 4):
            step(other, number)


@pytest.mark.cluster
def test_a_server_that_is_killed_leaves_no_segment() -> None:
    before_all = segments_of("self")
    command = [sys.executable, "-m", "psserver", "--ps-hosts", "127.0.0.1:0", "--json", "--policy", "async"]
    command.append("--no-out")
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    # How long it looks for a server that was killed.
    session = connect(json.loads(line(server))["address"], server_timeout=5.0)
    step(session, 0)
    grant = granted(session)
    with session.view_flat(grant) as (weights,):
        before = weights.tobytes()
        server.kill()
        server.communicate(timeout=PATIENCE)
        # The memory lives as long as somebody reads it.
        assert weights.tobytes() == before
    with pytest.raises(psworker.SessionError):
        session.contribute(grant, [np.frombuffer(before, np.float32)], samples=1)
    session.close()
    del session, weights

    def freed() -> bool:
        gc.collect()
        return segments_of("self") <= before_all

    wait_until(freed, "what was shared to be let go")
