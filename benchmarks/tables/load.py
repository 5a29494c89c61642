"""The load: 26 features with the cardinalities of Criteo's display challenge, 13 numbers, labels of a planted model.

Every process makes the same batches from a worker's number. Ids of a feature are zipfian (exponent 1.05), spread over
its vocabulary. Model: rows of 16 of all features and the numbers, 64 ReLU, one logit; Adagrad.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pswire.model.tables import TableSpec

# From the Criteo Kaggle data set, as in the README of DeepRec's Wide and Deep model.
CARDINALITIES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
DIM, NUMBERS, HIDDEN, BATCH = 16, 13, 64, 2048
RATE, ACCUMULATOR = 0.05, 0.1
SKEW = 1.05
# A process cycles through this many batches.
DISTINCT = 40


@dataclass(frozen=True)
class Batch:
    """`ids`: int64 [BATCH, features]. `numbers`: [BATCH, NUMBERS]. `labels`: [BATCH, 1]."""

    ids: NDArray[np.int64]
    numbers: NDArray[np.float32]
    labels: NDArray[np.float32]


def sizes(divisor: int) -> list[int]:
    """Return the vocabulary of each feature, divided by `divisor`."""
    return [max(3, each // divisor) for each in CARDINALITIES]


def tables(divisor: int) -> list[TableSpec]:
    """Return a table for each feature."""
    return [
        TableSpec(f"c{number:02}", DIM, "uniform", (-0.05, 0.05), number)
        for number in range(len(sizes(divisor)))
    ]


def weights() -> dict[str, NDArray[np.float32]]:
    """Return the initial dense variables."""
    dice = np.random.default_rng(0)
    inputs = len(CARDINALITIES) * DIM + NUMBERS
    return {
        "hidden/kernel": (dice.normal(size=(inputs, HIDDEN)) / np.sqrt(inputs)).astype(np.float32),
        "hidden/bias": np.zeros(HIDDEN, np.float32),
        "logit/kernel": (dice.normal(size=(HIDDEN, 1)) / np.sqrt(HIDDEN)).astype(np.float32),
        "logit/bias": np.zeros(1, np.float32),
    }


@cache
def batches(worker: int, divisor: int) -> list[Batch]:
    """Return a worker's batches."""
    dice = np.random.default_rng([7, worker])
    planted = np.random.default_rng(8).normal(size=len(CARDINALITIES))
    found = []
    for _ in range(DISTINCT):
        ids = draw_ids(dice, sizes(divisor))
        numbers = dice.normal(size=(BATCH, NUMBERS)).astype(np.float32)
        found.append(Batch(ids, numbers, draw_labels(dice, ids, planted)))
    return found


def draw_ids(dice: np.random.Generator, sizes: list[int]) -> NDArray[np.int64]:
    """Draw the ids of a batch, from vocabularies of these sizes."""
    return np.stack([_zipf(dice, size) for size in sizes], axis=1)


def draw_labels(
    dice: np.random.Generator, ids: NDArray[np.int64], planted: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Draw a batch's labels. `planted`: the weight of each feature."""
    score = np.sin(ids * 0.7) @ planted / 5
    return (dice.random(BATCH) < 1 / (1 + np.exp(-score))).astype(np.float32)[:, None]


def _zipf(dice: np.random.Generator, size: int) -> NDArray[np.int64]:
    """Draw bounded zipfian ranks by inverting the integral of x^-SKEW, and spread them over the vocabulary."""
    power = 1 - SKEW
    rank = ((dice.random(BATCH) * ((size + 1) ** power - 1) + 1) ** (1 / power)).astype(np.int64) - 1
    return np.clip(rank, 0, size - 1) * 2654435761 % size
