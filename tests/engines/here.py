"""An engine for tests: nodes with names of their own, which all are this machine. Keepers are real."""

import sys
from collections.abc import Sequence
from pathlib import Path

from pslab.display.progress import Display, Quiet
from pslab.experiment import Experiment
from pslab.launch.engines.launcher import Task
from pslab.launch.experiments import FinishedRun, run_real
from pslab.launch.remote.launcher import RemoteLauncher, keeper_command
from pslab.launch.remote.places import Node
from pslab.launch.remote.process import CommandPipe
from pslab.launch.tasks import Daemons
from tests.lab.drive import FAKE, experiment
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]


class HereLauncher(RemoteLauncher):
    """`command`: what begins a keeper. `sees`: the nodes see the run folder."""

    def __init__(
        self,
        *,
        wait: float = PATIENCE,
        keeper: Sequence[str] = (),
        sees: bool = True,
        cpus: int = 9,
        nodes: int = 2,
    ):
        super().__init__(ROOT, wait)
        self._keeper, self._cpus, self._count = list(keeper or keeper_command()), cpus, nodes
        if not sees:
            self._marker = "not/there"

    def nodes(self) -> Sequence[Node]:
        return [Node(name, "127.0.0.1", cpus=self._cpus) for name in ("n1", "n2", "n3")[: self._count]]

    def pipe(self, node: Node, task: Task, log: int) -> CommandPipe:
        return CommandPipe(self._keeper, log)

    def _mark(self, folder: Path) -> None:
        if self._marker != "not/there":
            super()._mark(folder)


def fakes(server: str = "ok", worker: str = "ok", **times: float) -> Daemons:
    """As in tests.lab.drive."""
    short = {"startup": PATIENCE, "linger": 0.5, "patience": 5.0, "farewell": PATIENCE}
    return Daemons(
        server=(sys.executable, FAKE, "server", server),
        worker=(sys.executable, FAKE, "worker", worker),
        **{**short, **times},
    )


def run_here(
    folder: Path,
    daemons: Daemons,
    launcher: HereLauncher | None = None,
    display: Display | None = None,
    what: Experiment | None = None,
) -> FinishedRun:
    """By keepers."""
    return run_real(
        what or experiment(), display or Quiet(), launcher or HereLauncher(), out=folder, daemons=daemons
    )
