"""`ps-lab check` of logs in which the policy changes: what it holds the new policy to, and from when on."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from pslab.check.checker import CheckResult, check_log
from pslab.runs.log import read_log
from pslab.verify.harness import CoordinatorHarness
from tests.promises import promise

Line = dict[str, Any]


def changed() -> list[Line]:
    """From `async` to `bounded` at version 4, with a ticket of w1 that is three versions old; a rate was set before."""
    job = CoordinatorHarness(
        "async", workers=2, terms={"optimizer": {"name": "sgd", "learning_rate": 0.1}}
    ).starts()
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


def verdict(lines: list[Line]) -> CheckResult:
    numbered = [line | {"i": number} for number, line in enumerate(lines)]
    return check_log(read_log(io.StringIO("".join(json.dumps(line) + "\n" for line in numbered))))


def at(lines: list[Line], kind: str, number: int = 0) -> int:
    return [place for place, line in enumerate(lines) if line["kind"] == kind][number]


def test_the_log_itself_passes() -> None:
    found = verdict(changed())
    assert found.ok, found.violations
    assert found.counts["changes of the policy"] == 0 and "policy guarantee" in found.counts


def another_former(lines: list[Line]) -> None:
    lines[at(lines, "policy")]["former"] = {"name": "sync"}


def another_version(lines: list[Line]) -> None:
    lines[at(lines, "policy")]["version"] -= 1


def while_one_waits(lines: list[Line]) -> None:
    change = lines.pop(at(lines, "policy"))
    lines.insert(at(lines, "commit", 5) + 1, change)


def settled_early(lines: list[Line]) -> None:
    settled = lines.pop(at(lines, "settled"))
    lines.insert(at(lines, "policy") + 1, settled | {"version": 4})


def never_settled(lines: list[Line]) -> None:
    del lines[at(lines, "settled")]


def settled_twice(lines: list[Line]) -> None:
    lines.insert(at(lines, "settled"), dict(lines[at(lines, "settled")]))


def other_weight(lines: list[Line]) -> None:
    """The new policy weighs at once: the first update under it has other factors."""
    place = next(n for n in range(at(lines, "policy"), len(lines)) if lines[n]["kind"] == "apply")
    for part in lines[place]["parts"]:
        part["factor"] /= 2
        part["weight"] /= 2
    for fold in lines[at(lines, "policy") : place]:
        if fold["kind"] == "fold":
            fold["factor"] /= 2


def other_knob(lines: list[Line]) -> None:
    """The log names a bound under which its last updates are not allowed."""
    lines[at(lines, "policy")]["policy"]["aggregate"] = 3


@promise("ps-lab check finds a planted violation around a change of policy.")
@pytest.mark.parametrize(
    ("edit", "check"),
    [
        (another_former, "changes of the policy"),
        (another_version, "changes of the policy"),
        (while_one_waits, "changes of the policy"),
        (settled_early, "changes of the policy"),
        (never_settled, "changes of the policy"),
        (settled_twice, "changes of the policy"),
        (other_weight, "policy guarantee"),
        (other_knob, "policy guarantee"),
    ],
)
def test_a_planted_violation_is_found(edit: Callable[[list[Line]], None], check: str) -> None:
    lines = changed()
    edit(lines)
    assert verdict(lines).counts[check] > 0
