"""What happens to a job of the World, drawn by its seed: cuts, delays, processes that stop or are lost, a full disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tests.world.clockwork import Process
from tests.world.job import Cluster, Kept, Server

# How files of checkpoints begin: what else is not written ends the job, as documented.
CHECKPOINT = ("server-", "coordinator", "manifest")
# Part of the worker timeout after which a peer gives up a connection to a process that stands still.
SILENT = (0.3, 0.8)


@dataclass(frozen=True)
class Weather:
    """How bad it is. Everything happens within the first `seconds`, so that the job can end behind them.

    `cuts`: share of frames; `slow`: share of frames that take up to `late` seconds; `stops`, `losses`: how many, of
    workers and of servers; `full`: share of steps on the disk that fail; `torn`: losses of servers in the middle of a
    checkpoint.
    """

    seconds: float = 8.0
    cuts: float = 0.0
    slow: float = 0.0
    late: float = 1.0
    stops: int = 0
    longest_stop: float = 2.0
    worker_losses: int = 0
    server_losses: int = 0
    full: float = 0.0
    torn: int = 0

    def over(self, cluster: Cluster) -> None:
        """Let it happen to the job. Call it before the job begins."""
        world, network, dice = cluster.world, cluster.network, cluster.world.dice

        def pass_by(name: str) -> str:
            if world.now > self.seconds or dice.random() >= self.cuts:
                return ""
            return dice.choice(("before", "after"))

        def delay() -> float:
            if world.now < self.seconds and dice.random() < self.slow:
                return dice.uniform(0.0, self.late)
            return dice.uniform(0.0001, 0.001)

        network.pass_by, network.delay = pass_by, delay
        cluster.fails = lambda file: (
            file.startswith(CHECKPOINT) and world.now < self.seconds and dice.random() < self.full
        )
        torn = self.torn

        def tear(server: Server, file: str) -> bool:
            nonlocal torn
            if not torn or not file.startswith(CHECKPOINT) or dice.random() < 0.8:
                return False
            torn -= 1
            world.at(0.0, server.lose)
            return True

        cluster.torn = tear
        for _ in range(self.stops):
            world.at(dice.uniform(0.05, self.seconds), lambda: self._stop(cluster))
        for _ in range(self.worker_losses):
            world.at(dice.uniform(0.05, self.seconds), lambda: _lose(cluster, cluster.workers))
        for _ in range(self.server_losses):
            world.at(dice.uniform(0.05, self.seconds), lambda: _lose(cluster, cluster.servers))

    def _stop(self, cluster: Cluster) -> None:
        """Stop a process for a while, as by a debugger or a machine that moves."""
        going = [each.process for each in (*cluster.workers, *cluster.servers) if _goes(each.process)]
        if going:
            process = cluster.world.dice.choice(going)
            stop(cluster, process, cluster.world.dice.uniform(0.05, self.longest_stop))


def stop(cluster: Cluster, process: Process, seconds: float) -> None:
    """Stop a process for so many seconds. Its peers give up their connections to it if that takes too long."""
    world = cluster.world
    world.say("stop", process.name, f"{seconds:.3f}")
    process.stopped = True

    def go_on() -> None:
        world.say("continue", process.name)
        process.stopped = False

    world.at(seconds, go_on)
    for connection in [each for each in cluster.network.connections if each.of(process)]:
        given_up = world.dice.uniform(*SILENT) * cluster.worker_timeout
        if given_up < seconds:
            world.at(given_up, partial(cluster.network.cut, connection))


def _goes(process: Process) -> bool:
    return process.alive and not process.over and not process.stopped


def _lose(cluster: Cluster, processes: Sequence[Kept]) -> None:
    going = [each for each in processes if _goes(each.process)]
    # Of a job that is over nobody has to come back.
    if going and not cluster.stopped:
        cluster.world.dice.choice(going).lose()
