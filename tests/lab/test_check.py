"""Every log check: consistent logs pass, and a planted violation is found, named and placed."""

import json
from collections.abc import Callable

import pytest

from pslab.check.checker import check_log
from pslab.runs.log import read_log
from tests.lab.logs import (
    Record,
    async_log,
    bounded_log,
    changed,
    find,
    inserted,
    part_changed,
    renumber,
    repeated,
    sync_log,
    text,
    verify,
    without,
)
from tests.sentences import Recorder

Edit = Callable[[list[Record]], None]
SSP = {"name": "ssp", "slack": 1}


@pytest.mark.parametrize(
    "records",
    [
        sync_log(),
        async_log(),
        bounded_log(),
        async_log(name="ssp", slack=3),
        async_log(name="my.module:Mine"),
        sync_log(workers=1),
    ],
    ids=["sync", "async", "bounded", "ssp", "custom", "alone"],
)
def test_good_logs_pass_all_checks(records: list[Record]) -> None:
    verdict = verify(records)
    assert verdict.violations == ()
    assert verdict.ok
    assert set(verdict.counts.values()) == {0}


def swap_parts(records: list[Record]) -> None:
    parts = find(records, "apply")["parts"]
    parts[0], parts[1] = parts[1], parts[0]


def swap_folds(records: list[Record]) -> None:
    """Another order of summation, stated consistently: only the turns differ."""
    first, second = find(records, "fold", 0), find(records, "fold", 1)
    first["ticket"], second["ticket"] = second["ticket"], first["ticket"]
    records.remove(first)
    records.insert(records.index(second), first)
    swap_parts(records)
    renumber(records)


def one_contribution_twice(records: list[Record]) -> None:
    update = find(records, "apply")
    update["parts"].append(dict(update["parts"][0]))


def both_fates(records: list[Record]) -> None:
    part = find(records, "apply")["parts"][0]
    drop = {"kind": "drop", "worker": part["worker"], "ticket": part["ticket"], "staleness": 1, "reason": "x"}
    records.insert(records.index(find(records, "apply")) + 1, {"i": 0, "t": 0.0, **drop})
    renumber(records)


def lose_an_update(records: list[Record]) -> None:
    """The last update vanishes; what it applied stays pending for ever."""
    records.remove(find(records, "apply", -1))
    find(records, "stop")["version"] -= 1
    renumber(records)


def sync_leaves_one_out(records: list[Record]) -> None:
    update = find(records, "apply", 1)
    update["parts"].pop()
    update["scale"] = 0.5
    for part in update["parts"]:
        part["weight"] = 0.5


def claim(policy: dict[str, object]) -> Edit:
    """The same log, said to be another policy's."""
    return changed("job", policy=policy)


def both(*edits: Edit) -> Edit:
    def edit(records: list[Record]) -> None:
        for each in edits:
            each(records)

    return edit


SYNC, ASYNC, BOUNDED = sync_log, async_log, bounded_log
PLANTED: list[tuple[Callable[[], list[Record]], Edit, str, str]] = [
    # (log, edit, check, words of the sentence)
    (SYNC, changed("commit", i=99), "indices", "index should be"),
    (SYNC, changed("commit", t=0.0), "time", "t goes back"),
    (SYNC, without("job"), "first and last", "first entry should be of kind job, got join"),
    (SYNC, repeated("job"), "first and last", "described a second time"),
    (SYNC, changed("job", format=1), "entries", "expected a log of format 2, got 1: release 0.2.0, or"),
    (SYNC, without("model"), "versions", "the entry before does not settle the model"),
    (SYNC, repeated("model"), "versions", "a model entry follows in place of the initial values"),
    (SYNC, repeated("stop"), "first and last", "stops a second time"),
    (
        SYNC,
        inserted("leave", kind="grant", worker="w0", ticket=99, version=3),
        "first and last",
        "after the job",
    ),
    (SYNC, inserted("apply", kind="teleport"), "entries", "unknown kind 'teleport'"),
    (SYNC, changed("commit", samples="8"), "entries", "samples should be a whole number"),
    (SYNC, changed("apply", parts=[]), "entries", "parts should be a list of objects"),
    (
        SYNC,
        part_changed(weight=None),
        "entries",
        "part 0 of the apply entry: weight should be a finite number",
    ),
    (SYNC, without("join", 1), "members", "w1 is granted ticket 3, but never joined"),
    (
        SYNC,
        inserted("commit", kind="leave", worker="w1", reason="?"),
        "members",
        "ticket 3 is open, not cancelled",
    ),
    (
        SYNC,
        inserted("grant", kind="leave", worker="w1", reason="?"),
        "members",
        "is granted ticket 3, but has left",
    ),
    (SYNC, inserted("grant", -1, kind="done", worker="w2"), "members", "granted ticket 10 after it was done"),
    (SYNC, repeated("join", 1), "members", "incarnation 0 has not left"),
    (SYNC, changed("join", 1, rank=0), "members", "joins with rank 0, which w0 has"),
    (SYNC, repeated("leave", -1), "members", "w2 leaves, but has left"),
    (SYNC, repeated("grant"), "tickets", "ticket 2 is granted a second time"),
    (
        SYNC,
        repeated("grant", ticket=77),
        "one open ticket",
        "w0 is granted ticket 77 while it holds ticket 2",
    ),
    (SYNC, repeated("commit"), "tickets", "commit of ticket 2, but it is already committed"),
    (SYNC, without("commit"), "tickets", "fold of ticket 2, but it is open and was never committed"),
    (SYNC, changed("commit", ticket=66), "tickets", "commit of ticket 66, which was never granted"),
    (SYNC, changed("commit", worker="w1"), "tickets", "ticket 2 by w1, but it was granted to w0"),
    (SYNC, one_contribution_twice, "tickets", "ticket 2 appears 2 times in one update"),
    (ASYNC, repeated("apply", version=2), "tickets", "apply of ticket 3, but it was already applied"),
    (ASYNC, both_fates, "tickets", "drop of ticket 3, but it was already applied"),
    (
        ASYNC,
        inserted("apply", kind="cancel", worker="w1", ticket=3, reason="?"),
        "tickets",
        "already committed",
    ),
    (ASYNC, changed("abandon", ticket=1), "tickets", "abandon of ticket 1 by w1, but it was granted to w0"),
    (ASYNC, lose_an_update, "accounting", "contributions of w0 are still pending"),
    (BOUNDED, repeated("drop"), "accounting", "w2 committed 2 contributions, but 1 applied + 2 dropped"),
    (SYNC, changed("commit", pull=-0.1, compute=0.1), "workers' times", "pull is -0.1 s"),
    (SYNC, changed("commit", pull=0.1), "workers' times", "reports pull, but not the rest"),
    (SYNC, changed("commit", before=0.1), "workers' times", "reports before, but not the rest"),
    (
        SYNC,
        changed("commit", pull=0.2, compute=0.2),
        "workers' times",
        "w0 pulled and computed 0.400000 s for ticket 2, but committed it 0.300000 s after its grant",
    ),
    (
        ASYNC,
        changed("commit", 1, pull=0.0, compute=0.0, before=9.0),
        "",
        "",
    ),
    (
        ASYNC,
        changed("commit", 4, pull=0.1, compute=0.2, before=9.0),
        "workers' times",
        "9.000000 s of it before the grant, but committed it",
    ),
    (SYNC, changed("apply", 1, version=3), "versions", "should make version 2, got 3"),
    (SYNC, changed("grant", -1, version=1), "versions", "ticket 10 is granted version 1, but 2 is current"),
    (SYNC, without("install"), "versions", "before any values were installed"),
    (SYNC, changed("install", version=4), "versions", "should become version 0, got 4"),
    (SYNC, repeated("install"), "versions", "although version 0 exists"),
    (SYNC, changed("stop", version=9), "versions", "stops at version 9, but the last version made is 3"),
    (ASYNC, part_changed(4, staleness=7), "staleness", "has staleness 7, but version 5 - 1 - base"),
    (ASYNC, part_changed(4, base=0, staleness=4), "staleness", "applied with base 0, but was granted"),
    (
        BOUNDED,
        changed("drop", staleness=0),
        "staleness",
        "dropped with staleness 0, but version 2 - base 0 = 2",
    ),
    (SYNC, part_changed(weight=0.5), "weights", "has weight 0.5, but factor 1.0"),
    (SYNC, part_changed(factor=0.5), "weights", "but factor 0.5"),
    (SYNC, swap_parts, "folds", "should begin with the folded tickets [2, 3]"),
    (SYNC, changed("fold", factor=2.0), "folds", "folded with factor 2.0"),
    (SYNC, repeated("fold"), "folds", "folded twice"),
    (
        BOUNDED,
        inserted("drop", kind="fold", ticket=2, factor=1.0),
        "folds",
        "dropped although it was already folded",
    ),
    (
        SYNC,
        inserted("done", kind="fold", ticket=10, factor=1.0),
        "folds",
        "[10] were folded, but never applied",
    ),
    (SYNC, swap_folds, "turns", "sums turns [1, 0, 2]"),
    (ASYNC, claim({"name": "sync", "backup": 0}), "policy guarantee", "the bound of sync is 0"),
    (SYNC, claim({"name": "sync", "backup": 1}), "", ""),
    (SYNC, claim({"name": "sync", "weight": "samples"}), "", ""),
    (SYNC, claim({"name": "sync", "backup": 9}), "policy guarantee", "backup"),
    (SYNC, claim({"name": "async"}), "policy guarantee", "has 3 parts; async takes 1"),
    (SYNC, claim({"name": "median"}), "policy guarantee", "the shards' aggregator is None; median says"),
    (SYNC, claim({"name": "bounded", "aggregate": 2}), "policy guarantee", "has 3 parts; bounded takes 2"),
    (SYNC, claim({"name": "bounded", "aggregate": 2, "on_stale": "block"}), "", ""),
    (ASYNC, claim({"name": "bounded", "aggregate": 2}), "policy guarantee", "has 1 parts; bounded takes 2"),
    (ASYNC, claim({"name": "bounded", "max_staleness": 1}), "policy guarantee", "the bound of bounded is 1"),
    (BOUNDED, changed("drop", reason="a whim"), "policy guarantee", "bounded drops nothing for that"),
    (BOUNDED, changed("drop", reason="too few"), "policy guarantee", "bounded drops nothing for that"),
    (
        BOUNDED,
        claim({"name": "bounded", "aggregate": 2, "max_staleness": 2}),
        "policy guarantee",
        "bounded applies what is at most 2 versions old",
    ),
    (
        BOUNDED,
        claim({"name": "bounded", "aggregate": 2, "max_staleness": 1, "on_stale": "block"}),
        "policy guarantee",
        "bounded drops nothing for that",
    ),
    (ASYNC, claim(SSP), "policy guarantee", "clocks ahead of the slowest; ssp permits"),
    (ASYNC, part_changed(4, staleness=7), "staleness law", "!="),
    (BOUNDED, changed("drop", staleness=0), "staleness law", "!="),
]


@pytest.mark.parametrize(
    ("log", "edit", "check", "words"),
    PLANTED,
    ids=[f"{number}-{case[2]}".replace(" ", "-") for number, case in enumerate(PLANTED)],
)
def test_a_planted_violation_is_found(
    log: Callable[[], list[Record]], edit: Edit, check: str, words: str
) -> None:
    records = log()
    edit(records)
    verdict = verify(records)
    if not check:
        assert verdict.violations == ()
        return
    assert not verdict.ok
    assert verdict.counts[check] > 0
    found = [violation for violation in verdict.violations if violation.check == check]
    assert any(words in violation.message for violation in found), [str(violation) for violation in found]


def test_a_violation_names_line_and_entry() -> None:
    records = sync_log()
    commit = find(records, "commit")
    repeated("commit")(records)
    line = records.index(commit) + 2
    (violation,) = [v for v in verify(records).violations if v.check == "tickets"]
    assert (violation.line, violation.index) == (line, line - 1)
    assert str(violation).startswith(f"line {line}, entry {line - 1}: ")


def test_every_violation_is_reported_not_only_the_first() -> None:
    records = async_log()
    for record in records:
        if record["kind"] == "apply":
            record["parts"][0]["weight"] = 3.0
    assert verify(records).counts["weights"] == 12


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{not json\n", "is not a JSON object"),
        ('{"i": 5, "t": 0.1, "ki', "was the file cut off here?"),
        ("\n", "is not a JSON object"),
        ("[1]\n", "expected a JSON object, got '[1]'"),
        ('{"t": 1.0, "kind": "start"}\n', "has no 'i'"),
        (
            '{"i": -3, "t": 1.0, "kind": "start"}\n',
            "i should be a whole number from 0 to 9223372036854775807, got -3",
        ),
        (
            '{"i": true, "t": 1.0, "kind": "start"}\n',
            "i should be a whole number from 0 to 9223372036854775807, got true",
        ),
        ('{"i": 9, "t": NaN, "kind": "start"}\n', "contains NaN"),
        ('{"i": 9, "t": 1.0, "kind": "done"}\n', "done entry has no 'worker'"),
    ],
)
def test_a_line_that_cannot_be_read_is_a_violation_and_the_rest_is_still_checked(
    line: str, words: str
) -> None:
    lines = text(sync_log()).splitlines(keepends=True)
    lines.insert(8, line)
    verdict = check_log(read_log(lines))
    (unreadable,) = [v for v in verdict.violations if v.check == "entries"]
    assert unreadable.line == 9
    assert words in unreadable.message
    assert verdict.entries == len(lines) - 1


def test_a_null_loss_and_unknown_keys_are_fine() -> None:
    records = sync_log()
    find(records, "commit").update(loss=None, norm=None, colour="blue")
    assert verify(records).ok


@pytest.mark.parametrize(
    "seconds", [{"pull": 0.1, "compute": 0.2}, {"pull": 0.0, "compute": 0.3, "before": 0.0}]
)
def test_times_that_fill_the_time_of_a_ticket_are_fine(seconds: Record) -> None:
    """The first grant and its commit are 0.3 s apart."""
    records = sync_log()
    find(records, "commit").update(seconds)
    assert verify(records).ok


def test_a_log_that_was_cut_off_passes_and_the_report_says_so(sentences: Recorder) -> None:
    records = async_log()
    verdict = verify(records[: len(records) // 2])
    assert verdict.ok
    sentences.check(*verdict.notes)


def test_an_empty_log_fails() -> None:
    verdict = check_log([])
    assert [violation.message for violation in verdict.violations] == ["the log is empty"]


def test_a_restarted_worker_and_its_pending_contribution_are_legal() -> None:
    """What a worker committed before it left stays valid: it is never lost silently."""
    records = json.loads(json.dumps(bounded_log()))
    at = records.index(find(records, "fold")) + 1
    coming = [
        {"kind": "lost", "worker": "w0"},
        {"kind": "leave", "worker": "w0", "reason": "connection lost"},
        {"kind": "join", "worker": "w0", "incarnation": 1, "rank": 0},
    ]
    for offset, record in enumerate(coming):
        records.insert(at + offset, {"i": 0, "t": 0.0, **record})
    assert verify(renumber(records)).violations == ()
    # Under a rule that remembers, the entry says what is lost with the process; and only that.
    records[0]["local"] = {"name": "dana-slim", "momentum": 0.9}
    records[0]["policy"] = {"name": "of a user's own"}
    (found,) = verify(records).violations
    assert "under the local rule dana-slim, whose memory is lost, and the entry does not say so" in str(found)
    rejoin = next(record for record in records if record["kind"] == "join" and record["incarnation"] == 1)
    rejoin["forgets"] = ["local rule"]
    assert verify(records).violations == ()
    find(records, "join")["forgets"] = ["codec"]
    (found,) = verify(records).violations
    assert "is said to forget what its codec remembered, but had committed nothing" in str(found)
    find(records, "join")["forgets"] = "codec"
    assert "forgets should be a list of strings" in str(verify(records).violations[0])
