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


def worker(fragments: int = 3) -> LocalWork:
    knobs = {"steps": 1, "learning_rate": FAR, **ADAMW, "weight_decay": 0.0, "fragments": fragments}
    return LocalWork(build("streaming-adamw", knobs, [6], PLAN))


def contribute(work: LocalWork, weights: Sequence[float], version: int, *, keep: bool = True) -> Any:
    """One ticket; each of AdamW's steps is FAR long. Takes and returns a number for each group."""
    result = work.payload(flats([*weights, *weights]), descending(np.ones_like), range(1), version)
    if keep:
        work.keep()
    first, second = np.round(result.flats[0], 4).reshape(2, 3).tolist()
    assert first == second
    return first


def test_a_group_that_was_not_exchanged_goes_on_from_where_the_worker_left_it() -> None:
    """Each step takes FAR from every weight. A group adds up its steps until its turn comes."""
    work = worker()
    assert contribute(work, [0, 0, 0], 0) == [FAR, 0, 0]
    # Servers have moved the first group to 7, which it takes over.
    assert contribute(work, [7, 0, 0], 1) == [0, 2 * FAR, 0]
    assert contribute(work, [7, 8, 0], 2) == [0, 0, 3 * FAR]
    # It began at 7, two rounds ago, and none of that was lost.
    assert contribute(work, [7, 8, 9], 3) == [3 * FAR, 0, 0]


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


def test_too_many_groups_are_refused(sentences: Recorder) -> None:
    with pytest.raises(LocalRuleError) as refused:
        worker(fragments=7)
    sentences.check(refused)
