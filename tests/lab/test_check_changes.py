"""`ps-lab check` of logs in which the policy changes: what it holds the new policy to, and from when on."""

import json
from collections.abc import Callable

import pytest

from pslab.verify.harness import CoordinatorHarness
from tests.lab.logs import Record, changed, find, renumber, repeated, verify, without
from tests.promises import promise

Edit = Callable[[list[Record]], None]


def honest() -> list[Record]:
    """From `async` to `bounded` at version 4, with a ticket of w1 that is three versions old; a rate was set before."""
    job = CoordinatorHarness("async", workers=2, optimizer={"name": "sgd", "learning_rate": 0.1}).starts()
    job.commits("w0", learning_rate=0.05)
    for batch in range(1, 4):
        job.commits("w0", batch=batch)
    job.changes_policy("bounded", {"max_staleness": 8, "aggregate": 2})
    for batch in range(4, 8):
        job.commits("w0", batch=batch)
    job.commits("w1")
    for batch in range(8, 14):
        job.commits("w0", batch=batch)
        job.commits("w1", batch=batch - 7)
    job.done("w0")
    job.done("w1")
    job.leaves("w0")
    job.leaves("w1")
    return [json.loads(line) for line in job.lines()]


def test_the_log_itself_passes() -> None:
    found = verify(honest())
    assert found.ok, found.violations
    assert found.counts["changes of the policy"] == 0 and "policy guarantee" in found.counts


def moved(kind: str, behind: str, nth: int = 0, **fields: object) -> Edit:
    def move(records: list[Record]) -> None:
        record = find(records, kind)
        records.remove(record)
        records.insert(records.index(find(records, behind, nth)) + 1, {**record, **fields})
        renumber(records)

    return move


def dropped(records: list[Record]) -> None:
    """The new policy drops at once what it would have to apply: a contribution of its first update."""
    begin = records.index(find(records, "policy"))
    end = next(n for n in range(begin, len(records)) if records[n]["kind"] == "apply")
    part = records[end]["parts"][-1]
    drop = {
        "kind": "drop",
        **{key: part[key] for key in ("worker", "ticket", "staleness")},
        "reason": "too few",
    }
    records.insert(end, drop)
    renumber(records)


def other_knob(records: list[Record]) -> None:
    """The log names a bound under which its last updates are not allowed."""
    find(records, "policy")["policy"]["aggregate"] = 3


CHANGES = "changes of the policy"
PLANTED: list[tuple[Edit, str]] = [
    (changed("policy", former={"name": "sync"}), CHANGES),
    (changed("policy", version=3), CHANGES),
    # While a contribution waits.
    (moved("policy", "commit", 5), CHANGES),
    (moved("settled", "policy", version=4), CHANGES),
    (without("settled"), CHANGES),
    (repeated("settled"), CHANGES),
    (dropped, "policy guarantee"),
    (other_knob, "policy guarantee"),
]


@promise("ps-lab check finds a planted violation around a change of policy.")
@pytest.mark.parametrize(("edit", "check"), PLANTED)
def test_a_planted_violation_is_found(edit: Edit, check: str) -> None:
    records = honest()
    edit(records)
    assert verify(records).counts[check] > 0
