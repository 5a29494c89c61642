"""Layers' state under staleness: values are mixed, whatever the factors, and what is kept for that is small."""

import numpy as np
import pytest

from psserver.policies import TensorParts
from psserver.shard import Apply, Fold, Hold, Release
from psserver.shard.mixing import weight
from pswire.model.plan import VariableSpec
from tests.shard.reference import Arrays, install, shards_of, stage

VARIABLES = (
    VariableSpec("w", (2,)),
    VariableSpec("frozen", (1000,), kind="state"),
    VariableSpec("average", (4, 3), kind="state"),
)
MEDIAN = TensorParts(aggregator="median", knobs={"fewest": 1})


def arrays(average: float) -> Arrays:
    return [np.zeros(2, np.float32), np.zeros(1000, np.float32), np.full((4, 3), average, np.float32)]


class Job:
    """Shards that have begun with an average of 0."""

    def __init__(self, servers: int = 1, tensors: TensorParts | None = None) -> None:
        self.plan, self.shards = shards_of(
            servers, {"name": "sgd"}, variables=VARIABLES, versions=9, tensors=tensors or TensorParts()
        )
        install(self.plan, self.shards, arrays(0.0))
        self.last = 1

    def grant(self) -> int:
        self.last += 1
        for shard in self.shards:
            shard.execute(Hold(self.last, shard.version))
        return self.last

    def apply(self, *parts: tuple[int, float, float]) -> None:
        """(ticket, change of the average, factor) each."""
        for ticket, change, _ in parts:
            stage(self.plan, self.shards, ticket, arrays(change))
        folds = tuple(Fold(ticket, factor) for ticket, _, factor in parts)
        for shard in self.shards:
            shard.execute(Apply(shard.version + 1, 1.0, 1.0, folds))

    @property
    def average(self) -> float:
        found = self.plan.gather([shard.arena.values(shard.version) for shard in self.shards])  # type: ignore[misc]
        assert len({*found[2].ravel().tolist()}) == 1
        return float(found[2].flat[0])

    @property
    def kept(self) -> int:
        return sum(shard.bases.nbytes for shard in self.shards)


def test_the_weight_falls_with_the_age_in_rounds() -> None:
    assert weight(8, 0) == 1
    assert weight(8, 8) == 1 / 2
    assert weight(8, 24) == 1 / 4


def test_the_value_that_a_worker_ended_with_is_mixed_into_the_newest() -> None:
    """x = 0; three tickets set it to 1, 2 and 4."""
    job = Job()
    first, second, third = job.grant(), job.grant(), job.grant()
    job.apply((first, 1.0, 1.0))
    assert job.average == 1
    job.apply((second, 2.0, 1.0))
    assert job.average == pytest.approx(1 + 2 / 3 * (2 - 1))
    job.apply((third, 4.0, 1.0))
    assert job.average == pytest.approx(5 / 3 + 1 / 3 * (4 - 5 / 3))


def test_several_values_in_one_version_count_by_their_factors_and_ages() -> None:
    job = Job()
    old, fresh = job.grant(), job.grant()
    job.apply((fresh, 1.0, 1.0))
    new = job.grant()
    job.apply((old, 3.0, 1.0), (new, 1.0, 3.0))
    assert job.average == pytest.approx(1 + (2 / 3 * (3 - 1) + 3 * (2 - 1)) / 4)


@pytest.mark.parametrize("factors", [(1.0, 4.0, 4.0), (1.0, -3.0, 1.0), (0.0, 0.5, 1e-3), (-1.0, -1.0, -1.0)])
@pytest.mark.parametrize("tensors", [TensorParts(), MEDIAN], ids=["mean", "median"])
def test_factors_never_carry_state_beyond_the_values(
    tensors: TensorParts, factors: tuple[float, ...]
) -> None:
    job = Job(tensors=tensors)
    tickets = [job.grant() for _ in factors]
    job.apply(*((ticket, 1.0, factor) for ticket, factor in zip(tickets, factors, strict=True)))
    assert job.average == pytest.approx(1)


def test_only_state_that_changes_is_kept_and_only_while_a_ticket_needs_it() -> None:
    job = Job()
    old, other = job.grant(), job.grant()
    assert job.kept == 0
    job.apply((job.grant(), 1.0, 1.0))
    # 12 elements of the average, for both tickets; nothing of the 1000 that stay as they are.
    assert job.kept == 48
    middle = job.grant()
    job.apply((job.grant(), 1.0, 1.0))
    assert job.kept == 96
    for ticket in (old, other):
        for shard in job.shards:
            shard.execute(Release(ticket))
    assert job.kept == 48
    job.apply((middle, 0.0, 1.0))
    assert job.kept == 0
