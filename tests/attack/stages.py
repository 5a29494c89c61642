"""Where a round is played: on servers in this process, and how they ended."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pswire.exits import ExitCode
from tests.attack.doors import Door, HandlerDoor, listing_methods
from tests.attack.scenarios import Scenario
from tests.attack.target import Line
from tests.service.serving import PATIENCE, Cluster, Served, serving

# Known to the servers only.
SECRET = "of the servers"
# Among members that attack: where one goes without a word, honest ones wait for a third of this; seconds.
AMONG_MEMBERS = 6.0
# Kinds of memory that end with a membership, whatever streams are still to be closed.
LASTING = ("reserved", "older versions")


@dataclass
class Stage:
    """Servers on threads of this process: thousands of messages a second. `hosts`: where gRPC listens; `lines`: where
    payloads are taken beside it; `doors`: the fastest way in."""

    cluster: Cluster
    doors: Sequence[Door]

    @property
    def hosts(self) -> list[str]:
        return [served.address for served in self.cluster.servers]

    @property
    def lines(self) -> list[Line]:
        sockets = [served.server.sockets for served in self.cluster.servers]
        return [Line(each.name, each.port) for each in sockets]

    def end(self) -> list[str]:
        """Once the honest workers are done: what was wrong with the servers' end."""
        codes = [served.ended() for served in self.cluster.servers]
        # Members among the attackers may leave before their data ended.
        fine = {ExitCode.OK, ExitCode.MISSING}
        found = [] if set(codes) <= fine else [f"the servers ended with {codes}"]
        return found + [problem for served in self.cluster.servers for problem in _wrong_account(served)]


def _wrong_account(served: Served) -> list[str]:
    """Of a server whose members have all left: nothing is held for anybody."""
    memory = served.probe.host.memory
    held = [kind for kind, nbytes in memory.parts().items() if nbytes and kind in LASTING]
    if held:
        return [f"memory is still held after the end: {held}"]
    if memory.total > memory.limit:
        return [f"the account of memory is wrong: {memory.parts()}"]
    return []


@contextmanager
def inside(scenario: Scenario, out: Path) -> Iterator[Stage]:
    overrides = [*options(scenario), f"cluster.worker_timeout={worker_timeout(scenario)}"]
    with (
        listing_methods() as methods,
        serving(
            scenario.servers,
            workers=scenario.workers,
            policy=scenario.policy,
            overrides=overrides,
            out=out,
            job_secret=SECRET,
        ) as cluster,
    ):
        # The last server is started first.
        servers = [served.server for served in cluster.servers]
        doors = [
            HandlerDoor(each, server.owner) for each, server in zip(reversed(methods), servers, strict=True)
        ]
        yield Stage(cluster, doors)


def worker_timeout(scenario: Scenario) -> float:
    """Seconds. Strangers are no members: nobody waits for one, and a busy machine must not lose an honest worker."""
    return AMONG_MEMBERS if scenario.company == "members" else PATIENCE


def options(scenario: Scenario) -> list[str]:
    """As --set takes them."""
    return [*scenario.knobs, "optimizer.learning_rate=0.05", "run.seed=7"]
