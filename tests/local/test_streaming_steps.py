"""Streaming DiLoCo's local rule: a worker goes on from its own weights, and pushes one group of rows in a round."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pswire.model.plan import VariableSpec, make_plan
from psworker.local import LocalRuleError, LocalWork, build
from tests.local.single_worker import ADAMW, descending, flats
from tests.sentences import Recorder

# Rows 0 and 3 are in the first group, 1 and 4 in the second, 2 and 5 in the third.
PLAN = make_plan([VariableSpec("x", (6,))], 1)
FAR = 0.5


def worker(fragments: int = 3, steps: int = 1, overlap: int = 0, mixing: float = 0.0) -> LocalWork:
    knobs = {"steps": steps, "learning_rate": FAR, **ADAMW, "weight_decay": 0.0}
    streaming = {"fragments": fragments, "overlap": overlap, "mixing": mixing}
    return LocalWork(build("streaming-adamw", {**knobs, **streaming}, [6], PLAN))


def contribute(work: LocalWork, weights: Sequence[float], version: int, *, keep: bool = True) -> Any:
    """One ticket; each of AdamW's steps is FAR long. Takes and returns a number for each group."""
    result = work.payload(flats([*weights, *weights]), descending(np.ones_like), range(1), version)
    if keep:
        work.keep()
    first, second = np.round(result.flats[0], 4).reshape(2, 3).tolist()
    assert first == second
    return first


def test_a_worker_that_has_missed_rounds_takes_over_what_they_changed() -> None:
    work = worker()
    contribute(work, [0, 0, 0], 0)
    # Round 1 was without it. Of its own weights only the last group's are left, a step from where they began.
    assert contribute(work, [7, 8, 0], 2) == [0, 0, 2 * FAR]
    # Rounds 2, 3 and 4: nothing of its own is left.
    assert contribute(work, [1, 2, 3], 5) == [0, 0, FAR]
    # A version of before is of another history.
    assert contribute(work, [1, 2, 3], 4) == [0, FAR, 0]


def test_what_was_dropped_does_not_come_again() -> None:
    """The version is the same as before, so the push was not applied: its group begins anew, the others go on."""
    work = worker()
    contribute(work, [0, 0, 0], 0)
    assert contribute(work, [0, 0, 0], 0) == [FAR, 0, 0]
    assert contribute(work, [0, 0, 0], 1) == [0, 3 * FAR, 0]


def test_a_ticket_that_comes_to_nothing_leaves_no_trace() -> None:
    work = worker()
    contribute(work, [0, 0, 0], 0)
    tries = [contribute(work, [7, 0, 0], 1, keep=False) for _ in range(3)]
    assert tries == 3 * [[0, 2 * FAR, 0]]
    bad = work.payload(flats([7, 0, 0, 7, 0, 0]), descending(lambda x: x * np.nan), range(1), 1)
    assert not math.isfinite(bad.norm)
    assert contribute(work, [7, 0, 0], 1) == tries[0]


def test_another_incarnation_begins_at_the_pulled_weights() -> None:
    work = worker()
    contribute(work, [0, 0, 0], 0)
    work.renew(1)
    assert contribute(work, [0, 0, 0], 1) == [0, FAR, 0]


# Overlap: each step takes FAR from every weight, and the first one of two comes before the version.


def overlapping(mixing: float, fragments: int = 1) -> LocalWork:
    return worker(fragments, steps=2, overlap=1, mixing=mixing)


def moves(work: LocalWork, weights: float, version: int) -> float:
    """Of one ticket, for a model that is one group; weights are all alike."""
    result = work.payload(flats([weights] * 6), descending(np.ones_like), range(2), version)
    work.keep()
    found = set(np.round(result.flats[0], 4).tolist())
    assert len(found) == 1
    return found.pop()


def test_what_was_dropped_does_not_come_again_by_mixing() -> None:
    work = overlapping(0.5)
    moves(work, 0, 0)
    assert moves(work, 0, 0) == FAR
    # A version behind a round that this worker has missed is taken over as well: nothing of its own is left.
    assert moves(work, 7, 2) == FAR


def test_a_last_ticket_may_be_shorter_than_the_overlap() -> None:
    work = worker(1, steps=4, overlap=3, mixing=0.5)
    for version, batches in enumerate([range(4), range(2)]):
        result = work.payload(flats([0.0] * 6), descending(np.ones_like), batches, version)
        work.keep()
    # From -4 FAR two steps on, and half of that.
    assert np.round(result.flats[0], 4).tolist() == [3 * FAR] * 6 and result.samples == 6


def test_too_many_groups_are_refused(sentences: Recorder) -> None:
    with pytest.raises(LocalRuleError) as refused:
        worker(fragments=7)
    sentences.check(refused)
