"""All copies of a part are lost at once, and all servers come back with their command: nobody waits for ever."""

from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

import pytest

from tests.cluster.cluster import Cluster, entries_of, wait_until
from tests.cluster.replicated import (
    GATE,
    MORE,
    SAVING,
    open_gates,
    saved,
    sha256,
    start,
    start_again,
    undisturbed,
    wait_for_the_gate,
)
from tests.repetitions import usually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

AUTO = "--resume", "auto"
LOST = "no server has a copy of"
NIGHTLY = pytest.mark.nightly


@dataclass(frozen=True)
class World:
    """`killed`: a whole pair of servers, at least. `more`: options of all servers."""

    servers: int
    killed: tuple[int, ...]
    more: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.servers} servers, {self.killed} killed, {' '.join(self.more) or 'no options'}"


def lose(cluster: Cluster, world: World) -> None:
    """Kill servers at a moment, and start them again."""
    start(cluster, "sync", servers=world.servers, batches=MORE, more=world.more)
    wait_for_the_gate(cluster, GATE)
    if SAVING[0] in world.more:
        wait_until(lambda: saved(cluster.out) == [3, 6], "checkpoints")
    for number in world.killed:
        cluster.servers[number].send(SIGKILL)
    for number in world.killed:
        cluster.servers[number].kill()
    for number in world.killed:
        start_again(cluster, number, "sync", *world.more)


def ended_well(cluster: Cluster) -> None:
    assert [server.wait_exit() for server in cluster.servers] == [0] * len(cluster.servers), [
        server.errors for server in cluster.servers
    ]


RETURNS = usually(
    [World(4, (2, 3), (*SAVING, *AUTO))],
    soak=[
        World(3, (0, 1), AUTO),
        World(2, (0, 1), (*SAVING, *AUTO)),
        World(3, (0, 1), (*SAVING, *AUTO)),
        World(3, (0, 1, 2), (*SAVING, *AUTO)),
        World(4, (0, 1), (*SAVING, *AUTO)),
        World(4, (0, 1, 2, 3), (*SAVING, *AUTO)),
        World(4, (2, 3), AUTO),
    ],
)


@pytest.mark.parametrize("world", RETURNS, ids=str)
def test_a_job_without_a_copy_goes_on_from_the_newest_checkpoint_by_itself(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the workers that it had; without a checkpoint from the beginning."""
    expected = undisturbed(tmp_path / "alone", 1000, MORE)
    monkeypatch.setenv("PS_REPLICAS", "2")
    (tmp_path / "lost").mkdir()
    with Cluster(tmp_path / "lost") as cluster:
        lose(cluster, world)
        open_gates(cluster)
        assert [worker.wait_exit() for worker in cluster.workers] == [0, 0], cluster.workers[0].errors
        ended_well(cluster)
        assert sha256(cluster) == expected
        run = cluster.checked_run()
        back = [entry["version"] for entry in entries_of(run, "restore")]
        assert back == ([6] if SAVING[0] in world.more else [])
        commits = [
            (entry["worker"], entry["batch"]) for entry in entries_of(run, "commit") if entry["samples"]
        ]
        assert sorted(commits) == [(f"w{rank}", batch) for rank in range(2) for batch in range(MORE)]


@pytest.mark.parametrize(
    ("world", "advice"),
    [
        pytest.param(World(4, (2, 3), SAVING), "start all servers with --resume latest", marks=NIGHTLY),
        (World(3, (0, 1), ()), "there is no checkpoint"),
    ],
    ids=str,
)
def test_a_job_that_may_not_go_back_by_itself_ends_and_says_what_to_do(
    world: World, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PS_REPLICAS", "2")
    with Cluster(tmp_path) as cluster:
        lose(cluster, world)
        open_gates(cluster)
        for server in cluster.servers:
            assert server.wait_exit() == 3, server.errors
            reason = str(server.wait_event("stopped")["reason"])
            assert LOST in reason and advice in reason
