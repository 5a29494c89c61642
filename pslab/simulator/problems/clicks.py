"""Clicks: logistic regression on embeddings of sparse features, whose labels a known model has drawn."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.simulator.problems.problem import Floats, Gradient, Parameters
from pswire.model.initial_rows import initial_rows
from pswire.model.tables import TableSpec, mix

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """`ids`: [samples, features]. `labels`: 0 or 1 of each sample."""

    ids: Ids
    labels: Floats


@dataclass(frozen=True)
class Clicks:
    """P(click) = sigmoid(bias + sum_f w_f . E_f[id_f]), one table E_f of rows of `dim` for each of `features`.

    Ids of a feature are from 0 to `vocabulary` - 1, id i with a chance that falls as (i + 1)^-`skew`. A label is drawn
    with the chance sigmoid(sum_f t_f(id_f)), where t is a table of normal numbers that the model does not see; so the
    best possible area under the ROC curve is that of these chances (`best_auc` in the metrics).
    """

    features: int = 4
    vocabulary: int = 1000
    dim: int = 4
    batch_size: int = 64
    batches_per_epoch: int = 100
    skew: float = 1.05
    strength: float = 1.0

    metrics = ("auc", "loss", "best_auc")

    @cached_property
    def _cumulative(self) -> NDArray[np.float64]:
        weights = (np.arange(self.vocabulary) + 1.0) ** -self.skew
        total: NDArray[np.float64] = np.cumsum(weights) / weights.sum()
        return total

    def tables(self) -> list[TableSpec]:
        """Return the tables: one for each feature."""
        return [TableSpec(f"feature{f}", self.dim, "uniform", (-0.05, 0.05), f) for f in range(self.features)]

    def initial(self) -> Parameters:
        return {
            "weights": np.full((self.features, self.dim), 1 / self.dim, np.float32),
            "bias": np.zeros(1, np.float32),
        }

    def batches(self, worker: int, workers: int, seed: int, epoch: int) -> Iterator[Batch]:
        dice = np.random.default_rng([seed, worker, epoch])
        for _ in range(self.batches_per_epoch):
            yield self._drawn(dice, self.batch_size)

    def _drawn(self, dice: np.random.Generator, samples: int) -> Batch:
        ids = np.searchsorted(self._cumulative, dice.random((samples, self.features))).astype(np.int64)
        labels = dice.random(samples) < self._chances(ids)
        return Batch(ids, labels.astype(np.float32))

    def _chances(self, ids: Ids) -> NDArray[np.float64]:
        """Return the true chance of a click of each sample: a pure function of its ids."""
        planted = TableSpec("planted", self.features, "normal", (0.0, self.strength / self.features**0.5))
        terms = initial_rows(planted, mix(ids.reshape(-1))).reshape(*ids.shape, self.features)
        total = sum(terms[:, f, f].astype(np.float64) for f in range(self.features))
        return np.asarray(1 / (1 + np.exp(-total)))

    def ids(self, batch: Batch) -> Mapping[str, Ids]:
        """Return the ids of each table, [samples]."""
        return {f"feature{f}": batch.ids[:, f] for f in range(self.features)}

    def gradient_rows(
        self, parameters: Parameters, batch: Batch, rows: Mapping[str, Floats]
    ) -> tuple[Gradient, dict[str, Floats]]:
        """Return loss and gradient, and the gradient of each looked-up row, [samples, dim] by table."""
        embedded = np.stack([rows[f"feature{f}"] for f in range(self.features)], axis=1)
        weights = parameters["weights"]
        scores = (embedded * weights).sum(axis=(1, 2)) + parameters["bias"][0]
        loss = np.logaddexp(0, scores) - batch.labels * scores
        slope = ((1 / (1 + np.exp(-scores)) - batch.labels) / scores.size).astype(np.float32)
        values = {
            "weights": (embedded * slope[:, None, None]).sum(axis=0).astype(np.float32),
            "bias": np.array([slope.sum()], np.float32),
        }
        by_table = {f"feature{f}": slope[:, None] * weights[f] for f in range(self.features)}
        return Gradient(values, float(loss.mean()), scores.size), by_table

    def heldout(self) -> Batch:
        """Return samples that no worker trains on."""
        return self._drawn(np.random.default_rng([1, 0, 2**31]), 4096)

    def evaluate_rows(
        self, parameters: Parameters, batch: Batch, rows: Mapping[str, Floats]
    ) -> dict[str, float]:
        """Return the metrics on `batch`, whose rows were looked up."""
        gradient, _ = self.gradient_rows(parameters, batch, rows)
        embedded = np.stack([rows[f"feature{f}"] for f in range(self.features)], axis=1)
        scores = (embedded * parameters["weights"]).sum(axis=(1, 2))
        return {
            "loss": gradient.loss,
            "auc": auc(scores, batch.labels),
            "best_auc": auc(self._chances(batch.ids), batch.labels),
        }

    def gradient(self, parameters: Parameters, batch: Any) -> Gradient:
        raise TypeError("the gradient of clicks needs rows: see gradient_rows")

    def evaluate(self, parameters: Parameters) -> dict[str, float]:
        raise TypeError("the metrics of clicks need rows: see evaluate_rows")


def auc(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the area under the ROC curve: the chance that a positive sample scores above a negative one.

    By the rank sum (Mann and Whitney 1947); ties count half.
    """
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse.reshape(-1)]
    positive = labels > 0.5
    many, few = int(positive.sum()), int((~positive).sum())
    if not many or not few:
        return float("nan")
    return float((ranks[positive].sum() - many * (many + 1) / 2) / (many * few))
