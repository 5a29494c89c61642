"""A worker dies, stands still or is replaced at any moment: the others train on within worker_timeout."""

import signal
import time
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, Process, entries_of, member
from tests.repetitions import SOAK, usually

pytestmark = pytest.mark.cluster

TIMEOUT = 4.0  # worker_timeout, seconds
# Of a quiet machine, in a soak. Without the promise they would wait for a ticket's limit, six times the timeout; what
# it is made of: tests/pswire/test_channels.py.
SLACK = 2.0
BATCH = 5  # at which the victim, w2, is held

# Half-way through a payload means half-way on the wire: this model does not fit into any buffer.
ELEMENTS = ("--elements", "2000000")
# What the others do meanwhile need not heat the room.
PACE = ("--seconds", "0.02")


def start_with_victim(
    cluster: Cluster,
    end_of_data: Path,
    *hold: str,
    policy: tuple[str, ...] = ("--policy", "sync"),
    servers: int = 2,
) -> Process:
    """Three workers; the third, w2, does as `hold` says."""
    cluster.start_servers(servers, *policy, "--workers", "3", "--allow-missing", timeout=TIMEOUT)
    for index in range(2):
        cluster.start_worker("--task-index", str(index), "--until", str(end_of_data), *PACE, *ELEMENTS)
    return cluster.start_worker("--task-index", "2", "--until", str(end_of_data), *ELEMENTS, *hold)


def wait_at_barrier(cluster: Cluster) -> int:
    """Until the others wait for w2; their version."""
    status = cluster.wait_for(
        lambda s: all(
            member(s, w).state == "waiting" and member(s, w).releasers == ["w2"] for w in ("w0", "w1")
        ),
        "w0 and w1 wait for w2",
    )
    return status.version


def assert_others_train_on(cluster: Cluster, version: int, since: float) -> None:
    """The next version is there; in a soak within worker_timeout, and a little."""
    cluster.wait_version(version + 1)
    seconds = time.monotonic() - since
    print(f"the others stood still for {seconds:.2f} s, worker_timeout is {TIMEOUT:g} s")
    assert seconds <= TIMEOUT + SLACK or not SOAK


def assert_rejoins(cluster: Cluster, process: Process, batch: int) -> None:
    """A new process takes the victim's place: it goes on where the former one's commits end."""
    assert process.wait_event("joined") == {"event": "joined", "worker": "w2", "next_batch": batch}
    cluster.wait_for(
        lambda s: member(s, "w2").incarnation >= 1 and member(s, "w2").applied > batch + 2,
        "w2 contributes again",
    )


# With one server a whole step is one round trip: there is nothing between push and commit.
MOMENTS = [
    (2, "pulling", "grpc"),
    (2, "pulling", "socket"),
    (2, "computing", "grpc"),
    (2, "pushing", "grpc"),
    (2, "pushing", "socket"),
    (2, "pushed", "grpc"),
    (1, "pulling", "grpc"),
    (1, "pushing", "grpc"),
    (1, "pushing", "socket"),
]
# In the middle of a payload; in a soak at every moment on every transport.
KILLED_AT = usually([MOMENTS[4]], soak=MOMENTS)
STOPPED_AT = usually([MOMENTS[2]], soak=MOMENTS)


@pytest.mark.parametrize(("servers", "moment", "transport"), KILLED_AT)
def test_a_killed_worker_is_missed_for_less_than_its_timeout(
    cluster: Cluster, end_of_data: Path, servers: int, moment: str, transport: str
) -> None:
    hold = ("--hold", f"{moment}@{BATCH}", "--transport", transport)
    victim = start_with_victim(cluster, end_of_data, *hold, servers=servers)
    victim.wait_event("held")
    version = wait_at_barrier(cluster)
    assert_others_train_on(cluster, version, since=victim.kill())
    again = cluster.start_worker("--task-index", "2", "--until", str(end_of_data), *ELEMENTS)
    # Under sync it had committed one batch per version.
    assert_rejoins(cluster, again, version)
    end_of_data.touch()
    run = cluster.wait_end(worker_codes=[0, 0, -9, 0])
    assert run.summary.success
    assert [e["incarnation"] for e in entries_of(run, "join") if e["worker"] == "w2"] == [0, 1]


@pytest.mark.parametrize(("servers", "moment", "transport"), STOPPED_AT)
def test_a_worker_that_stood_still_too_long_joins_again(
    cluster: Cluster, end_of_data: Path, servers: int, moment: str, transport: str
) -> None:
    hold = ("--hold", f"{moment}@{BATCH}", "--transport", transport)
    victim = start_with_victim(cluster, end_of_data, *hold, servers=servers)
    victim.wait_event("held")
    version = wait_at_barrier(cluster)
    victim.send(signal.SIGSTOP)
    # Its connection stands; only its silence tells.
    assert_others_train_on(cluster, version, since=time.monotonic())
    assert member(cluster.status(), "w2").state == "left"
    victim.send(signal.SIGCONT)
    victim.say("go")
    cluster.wait_for(
        lambda s: member(s, "w2").incarnation >= 1 and member(s, "w2").applied > BATCH + 2,
        "w2 contributes again",
    )
    end_of_data.touch()
    run = cluster.wait_end(worker_codes=[0, 0, 0])
    batches = [e["batch"] for e in entries_of(run, "commit") if e["worker"] == "w2"]
    # In order, each once; only what it was about to commit may be missing.
    assert batches == sorted(set(batches))
    assert len(set(range(batches[-1])) - set(batches)) <= 1
