"""A worker whose model draws random numbers: its stream is found again, also behind cancelled tickets."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pslab.replay.worker_replica import DataError, DataPart, WorkerReplica
from pswire.model.plan import Plan, VariableSpec
from psworker.local import PLAIN, LocalWork, build

Floats = NDArray[np.float32]


@dataclass
class Drawn:
    flats: list[Floats]
    loss: float
    norm: float = 0.0
    samples: int = 1


class Dice:
    """Its loss is 100 * worker + how often that worker has stepped: what depends on memory, visibly."""

    def __init__(self) -> None:
        self.state = np.zeros(1, np.int64)

    @property
    def specs(self) -> list[tuple[VariableSpec, Floats]]:
        return []

    def attach(self, plan: Plan) -> None:
        pass

    def batches(
        self, worker_index: int, worker_count: int, seed: int, epochs: int, skip: int
    ) -> Iterator[tuple[int, Any]]:
        self.state = np.array([100 * worker_index])
        return iter([(number, None) for number in range(skip, 10)])

    def step(self, flats: list[Floats], batch: Any) -> Drawn:
        self.state = self.state + 1
        return Drawn(flats, float(self.state[0]))

    def evaluate(self, flats: list[Floats]) -> dict[str, float]:
        return {}

    def memory(self) -> list[NDArray[Any]]:
        return [self.state]

    def remember(self, values: list[NDArray[Any]]) -> None:
        (self.state,) = values


def replica(dice: Dice, rank: int, skip: int = 0) -> WorkerReplica:
    work = LocalWork(build(PLAIN, {}, []))
    return WorkerReplica(f"w{rank}", DataPart(rank, 2, 0, 1), dice, [np.zeros(1, np.int64)], skip, work)


def test_twins_share_a_trainer_and_keep_their_own_memory() -> None:
    dice = Dice()
    first, second = replica(dice, 1), replica(dice, 2)
    losses = [t.compute([], n, lambda r: True).loss for n in range(3) for t in (first, second)]
    assert losses == [101, 201, 102, 202, 103, 203]


def test_draws_for_cancelled_tickets_are_found_by_the_logged_loss() -> None:
    worker = replica(Dice(), 1)
    worker.uncertain = 3
    assert worker.compute([], 0, lambda r: r.loss == 103).loss == 103
    assert worker.uncertain == 0
    assert worker.compute([], 1, lambda r: r.loss == 104).loss == 104


def test_without_a_fit_nothing_is_assumed_about_cancelled_tickets() -> None:
    worker = replica(Dice(), 1)
    worker.uncertain = 2
    assert worker.compute([], 0, lambda r: False).loss == 101
    assert worker.compute([], 1, lambda r: False).loss == 102


def test_skipped_batches_are_passed_over_and_missing_ones_refused() -> None:
    worker = replica(Dice(), 1, skip=2)
    worker.compute([], 5, lambda r: True)
    with pytest.raises(DataError, match="committed batch 4 after batch 5"):
        worker.compute([], 4, lambda r: True)
    with pytest.raises(DataError, match="data ends before batch 10, which w1"):
        worker.compute([], 10, lambda r: True)
