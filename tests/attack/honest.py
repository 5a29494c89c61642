"""Workers that know nothing of the attack: psworker's own loop on a problem in numpy."""

import threading
from collections.abc import Sequence

import psworker
from pslab.simulator.problems import numpy_problem
from pslab.simulator.problems.problem import NumpyTrainer
from psworker import loop
from tests.links import connect_link
from tests.patience import PATIENCE

# Elements of the model: small, so that messages are many.
DIMENSIONS = 24


def trainer(batches: int, *, tables: bool = False) -> NumpyTrainer:
    if tables:
        # Few ids, so that workers meet.
        clicks = {"features": 3, "vocabulary": 200, "dim": 4, "batch_size": 16, "batches_per_epoch": batches}
        return numpy_problem("clicks", clicks)
    options = {
        "dimensions": DIMENSIONS,
        "noise": 0.1,
        "batches_per_epoch": batches,
        "centres": [0.0, 1.0, 2.0],
    }
    return numpy_problem("quadratic", options)


class Gate:
    """Keeps the honest workers at work for as long as the attack lasts: batch k of n waits for its share of it."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._share = 0.0
        self._moved = threading.Condition()

    def move(self, share: float) -> None:
        """So much of the attack, 0 to 1, is over."""
        with self._moved:
            self._share = max(self._share, share)
            self._moved.notify_all()

    def wait(self, batch: int, patience: float) -> None:
        with self._moved:
            self._moved.wait_for(lambda: min(batch, self._batches) <= self._share * self._batches, patience)


class Honest(threading.Thread):
    """One worker. After `join`: `error`, or `steps` contributions and the job's `stop`."""

    def __init__(
        self, hosts: str, index: int, batches: int, transport: str, gate: Gate, *, tables: bool = False
    ) -> None:
        super().__init__(name=f"honest-{index}", daemon=True)
        self._tables = tables
        self._hosts, self._index, self._batches = hosts, index, batches
        self._transport, self._gate = transport, gate
        self._computed = 0
        self.joined = threading.Event()
        self.steps = 0
        self.stop: psworker.Stop | None = None
        self.error: BaseException | None = None

    @property
    def diverged(self) -> bool:
        """The model that it trained became useless."""
        return isinstance(self.error, psworker.errors.Diverged)

    @property
    def worker(self) -> str:
        return f"honest-{self._index}"

    def run(self) -> None:
        try:
            self._train()
        except BaseException as error:
            self.error = error
        finally:
            self.joined.set()

    def _train(self) -> None:
        model = trainer(self._batches, tables=self._tables)
        with connect_link(
            self._hosts,
            model.specs,
            name=self.worker,
            task_index=self._index,
            transport=self._transport,
            local_rules=True,
            server_timeout=PATIENCE,
            tables=model.tables,
        ) as session:
            model.attach(session.plan)
            self.joined.set()
            outcome = loop.train(session, model, 1, lambda *_: None, self._pause)
        self.steps, self.stop = outcome.steps, outcome.stop

    def _pause(self) -> None:
        self._computed += 1
        # A share of the attack, and never longer than the servers' patience with a worker.
        self._gate.wait(self._computed, 10 * PATIENCE)


def problems(workers: Sequence[Honest], patience: float, *, spoilt: bool = False) -> list[str]:
    """What became of honest workers that should not have. `spoilt`: others may have made the model useless."""
    found = []
    for worker in workers:
        worker.join(patience)
        if worker.is_alive():
            found.append(f"{worker.worker} goes on {patience:g} s after the attack")
        elif worker.diverged and spoilt:
            continue
        elif worker.error is not None:
            found.append(f"{worker.worker} failed: {type(worker.error).__name__}: {worker.error}")
        elif worker.stop is None or not worker.stop.success:
            found.append(f"{worker.worker} ended with {worker.stop}")
    return found
