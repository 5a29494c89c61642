"""When held-out data is measured, which version is the best, when that ends a job or lowers the learning rate."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pswire.config.units import Interval
from psworker.engine import Grant
from psworker.evaluating import Evaluations, MonitorError, Plateau, Watched
from tests.sentences import Recorder


@pytest.mark.parametrize(
    ("monitor", "values", "best"),
    [
        ("val_loss", [3.0, 2.0, 2.5], 2),
        ("accuracy", [0.5, 0.7, 0.6], 2),
        ("max score_error", [1.0, 3.0, 2.0], 2),
        ("min f1", [3.0, 2.0, 2.5], 2),
    ],
)
def test_the_best_version(monitor: str, values: list[float], best: int) -> None:
    watched = Watched(monitor)
    name = monitor.rpartition(" ")[2]
    assert [watched.add(v, {name: value}) for v, value in enumerate(values, start=1)] == [True, True, False]
    assert (watched.version, watched.best, watched.ends) == (best, values[1], "")


def test_patience_ends_the_job_and_says_why(sentences: Recorder) -> None:
    watched = Watched("loss", patience=2)
    for version, loss in [(10, 1.0), (20, 1.5), (30, 0.5), (40, 0.5)]:
        watched.add(version, {"loss": loss})
        assert not watched.ends
    watched.add(50, {"loss": 0.6})
    sentences.check(watched.ends)


def test_what_is_not_a_number_is_never_the_best(sentences: Recorder) -> None:
    """Patience ends, as Keras' EarlyStopping does, and nothing is kept."""
    watched = Watched("loss", patience=2)
    assert not watched.add(1, {"loss": math.nan}) and not watched.ends
    assert not watched.add(2, {"loss": math.nan})
    sentences.check(watched.ends)
    watched = Watched("loss", patience=2)
    for version, (loss, better) in enumerate([(math.nan, False), (2.0, True), (math.nan, False)], start=1):
        assert watched.add(version, {"loss": loss}) == better
    assert (watched.version, watched.best, watched.ends) == (2, 2.0, "")


def test_a_metric_that_is_not_measured_is_named_with_those_that_are(sentences: Recorder) -> None:
    with pytest.raises(MonitorError) as refused:
        Watched("f1").add(1, {"loss": 1.0, "accuracy": 0.5})
    sentences.check(refused)
    with pytest.raises(MonitorError) as refused:
        Watched().add(1, {})
    sentences.check(refused)


def test_a_plateau_lowers_the_rate_and_counts_anew() -> None:
    plateau, rate, rates = Plateau(patience=2, factor=0.5, minimum=0.3), 1.0, []
    for better in (True, False, True, False, False, False, False, False, False, False, False):
        rate = plateau.add(better, rate) or rate
        rates.append(rate)
    assert rates == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.3, 0.3, 0.3, 0.3, 0.3]


class Trainer:
    """The loss is the first weight."""

    epoch = 0

    def evaluate(self, flats: list[np.ndarray[Any, Any]]) -> dict[str, float]:
        assert all(flat.dtype == np.float32 for flat in flats)
        return {"loss": float(flats[0][0])}


def weights(value: float) -> list[np.ndarray[Any, Any]]:
    return [np.full(2, value, np.float16)]


def made(every: Interval, **more: Any) -> tuple[Evaluations, list[int], Trainer]:
    reported: list[int] = []

    def report(version: int, metrics: Mapping[str, float]) -> None:
        reported.append(version)

    trainer = Trainer()
    return Evaluations(every, Watched(), trainer, report, **more), reported, trainer


def go(evaluations: Evaluations, version: int, value: float = 1.0) -> None:
    evaluations.take(Grant(version, version, 0), weights(value))
    evaluations.measure()


def test_by_versions_whatever_versions_this_worker_is_granted() -> None:
    evaluations, reported, _ = made(Interval(3, "versions"))
    for version in (0, 1, 4, 5, 6, 7, 20, 21):
        go(evaluations, version)
    assert reported == [4, 7, 20]


def test_by_epochs_of_the_trainers_data_and_by_seconds() -> None:
    evaluations, reported, trainer = made(Interval(1, "epochs"))
    for version, trainer.epoch in enumerate([0, 0, 1, 1, 2]):
        go(evaluations, version)
    assert reported == [2, 4]
    times = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    evaluations, reported, _ = made(Interval(30, "s"), clock=lambda: next(times))
    for version in range(4):
        go(evaluations, version)
    assert reported == [1, 3]


def test_what_is_kept_is_a_copy_of_the_best() -> None:
    kept: list[float] = []
    evaluations, _, _ = made(Interval(1, "versions"), keep=lambda flats: kept.append(float(flats[0][0])))
    shared = weights(0.0)
    for version, value in enumerate([3.0, 2.0, 2.5, 1.0], start=1):
        shared[0][:] = value
        evaluations.take(Grant(version, version, 0), shared)
        shared[0][:] = 99  # the servers write the next version there
        assert evaluations.pending
        evaluations.measure()
        assert not evaluations.pending
    assert kept == [3.0, 2.0, 1.0]


def test_a_plateau_lowers_the_rate_and_a_rollback_forgets_that() -> None:
    present, lowered = [0.4], list[tuple[int, float]]()
    evaluations, _, _ = made(
        Interval(1, "versions"),
        plateau=Plateau(patience=1, factor=0.5),
        rate=lambda: present[0],
        lowered=lambda version, rate: lowered.append((version, rate)),
    )
    go(evaluations, 1, 1.0)
    assert evaluations.learning_rate is None
    go(evaluations, 2, 2.0)
    assert evaluations.learning_rate == 0.2 and lowered == [(2, 0.2)]
    present[0] = 0.2
    go(evaluations, 3, 2.0)
    assert evaluations.learning_rate == 0.1
    # Servers that go back to a checkpoint have the rate of then; it is that which the next plateau lowers.
    evaluations.rolled_back()
    present[0] = 0.4
    assert evaluations.learning_rate is None
    go(evaluations, 2, 2.0)
    assert evaluations.learning_rate is None
    go(evaluations, 3, 2.0)
    assert lowered[-1] == (3, 0.2)


def test_no_rate_is_set_where_none_can_be_or_the_job_ends() -> None:
    evaluations, _, _ = made(Interval(1, "versions"), plateau=Plateau(patience=1), rate=lambda: None)
    for version, loss in enumerate([1.0, 2.0, 3.0], start=1):
        go(evaluations, version, loss)
        assert evaluations.learning_rate is None
    evaluations, _, _ = made(Interval(1, "versions"), plateau=Plateau(patience=1), rate=lambda: 0.1)
    evaluations.watched.patience = 1
    for version, loss in enumerate([1.0, 2.0], start=1):
        go(evaluations, version, loss)
    assert evaluations.watched.ends and evaluations.learning_rate is None
