"""Scikit-learn's handwritten digits, split and dealt out as in the examples."""

from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pslab.simulator.problems.problem import Floats, ProblemError

Labels = NDArray[np.int64]
Batch = tuple[Floats, Labels]
CLASSES = 10


@cache
def digits() -> tuple[Batch, Batch]:
    """((images [1437, 64] from 0 to 1, labels [1437]), the same of the 360 held out)."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise ProblemError("the digits need scikit-learn: pip install 'paramserver[examples]'") from error
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels.astype(np.int64), test_size=360, stratify=labels, random_state=0
    )
    return (train_x, train_y), (test_x, test_y)


def dealt(worker: int, workers: int, seed: int, epoch: int, batch_size: int) -> Iterator[Batch]:
    """One worker's batches: shuffled anew each epoch and dealt like cards, so that batch k of all
    n workers together is batch k of one worker with n times the batch size."""
    (x, y), _ = digits()
    mine = np.random.default_rng([seed, epoch]).permutation(len(x))[worker::workers]
    for start in range(0, len(mine), batch_size):
        chosen = mine[start : start + batch_size]
        yield x[chosen], y[chosen]


def softmax_loss(logits: Floats, labels: Labels) -> tuple[float, Floats]:
    """Mean cross-entropy, and its gradient with respect to the logits [n, classes]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    total = exponentials.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(np.mean(np.log(total[:, 0]) - shifted[rows, labels]))
    gradient = exponentials / total
    gradient[rows, labels] -= 1
    return loss, (gradient / np.float32(len(labels))).astype(np.float32)


def accuracy(logits: Floats, labels: Labels) -> float:
    return float(np.mean(logits.argmax(axis=1) == labels))
