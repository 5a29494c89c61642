"""Scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels, on disk with scikit-learn.

Split once and for all into 1,437 to train on and 360 held out, each digit in
the same proportion in both.
"""

from collections.abc import Callable, Iterator

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Batch = tuple[np.ndarray, np.ndarray]


def digits(part: str) -> Batch:
    """(images float32[n, 64] from 0 to 1, labels int32[n]) of "train" or "heldout"."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    labels = labels.astype(np.int32)
    train_x, heldout_x, train_y, heldout_y = train_test_split(
        images, labels, test_size=360, stratify=labels, random_state=0
    )
    return {"train": (train_x, train_y), "heldout": (heldout_x, heldout_y)}[part]


def shuffled_batches(
    data: Batch, worker_index: int, worker_count: int, seed: int, batch_size: int, leave_out: int = 0
) -> Callable[[int], Iterator[Batch]]:
    """A function of the epoch that gives one worker's batches.

    Every epoch is shuffled anew and dealt out like cards: worker 0 takes the
    first sample, worker 1 the second, ... So batch k of all n workers together
    is batch k of one worker with n times the batch size. The last batch may be
    short; the last `leave_out` batches are left out.
    """
    x, y = data

    def epoch_of(epoch: int) -> Iterator[Batch]:
        order = np.random.default_rng([seed, epoch]).permutation(len(x))[worker_index::worker_count]
        starts = range(0, len(order), batch_size)
        for start in starts[: len(starts) - leave_out]:
            chosen = order[start : start + batch_size]
            yield x[chosen], y[chosen]

    return epoch_of
