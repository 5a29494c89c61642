"""What a simulated worker needs of the cluster around it."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pslab.simulator.network import EventQueue, Network
from pslab.simulator.store import Store
from pslab.simulator.workers.data import Dealing
from psworker.engine import Request
from psworker.local import LocalWork

Floats = NDArray[np.float32]

# The worker itself: what it calls is told who calls.
W = TypeVar("W")


class Surroundings(Protocol[W]):
    """What a worker needs of the cluster around it."""

    queue: EventQueue
    network: Network
    store: Store
    # Cancelled workers stop at once.
    interrupt: bool
    # Samples of a batch, where only time matters.
    batch_size: int
    # From a worker and its first batch to its numbered batches.
    batches: Callable[[W, int], Iterator[tuple[int, Any]]]
    # None where each worker has data of its own.
    dealing: Dealing | None

    def join(self, worker: W, life: int) -> None: ...

    def receive(self, worker: W, incarnation: int, request: Request) -> None:
        """A request of this incarnation arrives at the coordinator."""
        ...

    def gone(self, worker: W) -> None:
        """The process has ended after the stop."""
        ...

    def closed(self, ticket: int) -> bool:
        """The shards take no payload for it any more."""
        ...

    def local_work(self) -> LocalWork: ...

    def initial(self, worker: W) -> list[Floats]:
        """The payload of version 0."""
        ...

    def evaluate(self, worker: W, version: int) -> None: ...
