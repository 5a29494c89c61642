"""`ps-lab check` knows what each built-in policy guarantees: it finds breaches planted in honest logs."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import pytest

from psserver.policies import names
from tests.coordinator.settings import Setting
from tests.lab.logs import Record, renumber, verify

Breach = Callable[[list[Record]], None]


def lively(policy: str, after: int = 0, **knobs: object) -> list[Record]:
    """The log of a random job with some staleness, or cancelled or dropped work: honest, and one's own to spoil.

    `after`: how many of them to pass over.
    """
    return cast(list[Record], json.loads(_lively(policy, after, json.dumps(knobs))))


@cache
def _lively(policy: str, after: int, knobs: str) -> str:
    for seed in range(1000):
        schedule = Setting(policy, 4, json.loads(knobs)).play(seed, 200).job
        records = [{"i": r.index, "t": round(r.t, 6), **r.entry.to_json()} for r in schedule.log]
        stale = [p for r in records if r["kind"] == "apply" for p in r["parts"] if p["staleness"] > 1]
        void = [r for r in records if r["kind"] == "cancel" and r["reason"].startswith("version ")]
        void += [r for r in records if r["kind"] == "drop" and r["reason"] == "stale"]
        if schedule.version >= 4 and (stale or void):
            assert verify(records).violations == ()
            if not after:
                return json.dumps(records)
            after -= 1
    raise AssertionError(f"nothing happens under {policy} {knobs}")


def claim(**knobs: object) -> Breach:
    """The same log, said to be of a policy with other knobs."""

    def change(records: list[Record]) -> None:
        records[0]["policy"] = {**records[0]["policy"], **knobs}

    return change


def cancel_one(records: list[Record]) -> None:
    """An update cancels a ticket that is young enough: one granted right before it."""
    at = next(n for n, r in enumerate(records) if r["kind"] == "grant" and r["version"] == 1)
    grant = records[at]
    reason = "version 1 was made without it"
    records.insert(
        at + 1, {"kind": "cancel", "worker": grant["worker"], "ticket": grant["ticket"], "reason": reason}
    )
    renumber(records)


def become(name: str) -> Breach:
    """The same log, said to be of another policy."""

    def change(records: list[Record]) -> None:
        records[0]["policy"] = {"name": name}

    return change


def swap_author(records: list[Record]) -> None:
    """An update of two has both parts of one worker."""
    update = next(r for r in records if r["kind"] == "apply" and len(r["parts"]) == 2)
    update["parts"][1]["worker"] = update["parts"][0]["worker"]


PLANTED: list[tuple[str, dict[str, object], Breach, str]] = [
    ("k-sync", {"aggregate": 2}, claim(aggregate=3), "has 2 parts; k-sync takes 3"),
    ("k-sync", {"aggregate": 2}, claim(aggregate=1), "has 2 parts; k-sync takes 1"),
    ("k-sync", {"aggregate": 2}, swap_author, "applies 2 contributions of"),
    ("k-sync", {"aggregate": 2}, claim(late="drop"), "k-sync cancels nothing"),
    ("k-sync", {"aggregate": 2, "late": "drop"}, claim(late="cancel"), "k-sync drops nothing for that"),
    ("k-batch-async", {"aggregate": 2}, claim(name="rennala"), "the bound of rennala is 0"),
    ("rennala", {"aggregate": 2}, claim(name="k-async"), "k-async drops nothing for that"),
    ("rennala", {"aggregate": 2}, cancel_one, "rennala cancels nothing"),
    ("k-async", {"aggregate": 2}, claim(name="k-sync"), "the bound of k-sync is 0"),
    ("k-batch-async", {"aggregate": 2}, claim(name="k-async"), "applies 2 contributions of"),
    ("k-batch-async", {"aggregate": 2}, claim(aggregate=1), "has 2 parts; k-batch-async takes 1"),
    ("softsync", {"n": 2}, claim(n=4), "has 2 parts; softsync takes 1"),
    ("softsync", {"n": 4}, claim(n=0), "policy softsync: n"),
    ("async", {}, claim(name="ringmaster", threshold=2), "the bound of ringmaster is 1"),
    ("ringmaster", {"threshold": 2}, claim(threshold=9), "ringmaster applies what is at most 8"),
    ("ringmaster", {"threshold": 2, "stops": True}, claim(stops=False), "ringmaster cancels nothing"),
    ("dc-asgd", {}, become("gap-aware"), "the shards' compensator is taylor"),
    ("dc-asgd-a", {}, claim(decay=0.5), "dc-asgd-a says"),
    ("gap-aware", {}, become("async"), "async says None"),
    ("async", {}, claim(name="dssp", lower=0, upper=0), "dssp permits 0"),
    ("fedbuff-timeout", {"timeout": 0.1, "aggregate": 4}, claim(aggregate=1), "fedbuff-timeout takes 1"),
]


@pytest.mark.parametrize(
    ("policy", "knobs", "breach", "words"),
    PLANTED,
    ids=[f"{number}-{case[0]}" for number, case in enumerate(PLANTED)],
)
def test_a_planted_breach_is_found(policy: str, knobs: dict[str, Any], breach: Breach, words: str) -> None:
    # Not every honest log has what another knob would have forbidden.
    for after in range(60):
        records = lively(policy, after, **knobs)
        breach(records)
        verdict = verify(records)
        found = [str(v) for v in verdict.violations if v.check == "policy guarantee"]
        if any(words in sentence for sentence in found):
            return
    raise AssertionError([str(v) for v in verdict.violations])


def rounds(policy: str, workers: int, **knobs: object) -> list[Record]:
    """The log of a random job under a barrier, with a good number of updates."""
    for seed in range(1000):
        schedule = Setting(policy, workers, knobs).play(seed, 200).job
        if schedule.version >= 3:
            return [{"i": r.index, "t": round(r.t, 6), **r.entry.to_json()} for r in schedule.log]
    raise AssertionError(f"nothing happens under {policy} {knobs}")


def drop_all(records: list[Record]) -> None:
    """Instead of the last update its contributions are dropped."""
    at = max(n for n, r in enumerate(records) if r["kind"] == "apply")
    drops = [
        {"kind": "drop", "worker": p["worker"], "ticket": p["ticket"], "staleness": 0, "reason": "too few"}
        for p in records[at]["parts"]
    ]
    records[at : at + 1] = drops
    renumber(records)


ROBUST: list[tuple[str, int, dict[str, object], Breach, str]] = [
    ("median", 3, {}, become("trimmed-mean"), "trimmed-mean says"),
    ("sync", 3, {}, drop_all, "sync drops nothing for that"),
    ("trimmed-mean", 3, {"trim": 0}, claim(trim=2), "trim must be a whole number"),
    ("sync", 3, {"backup": 1}, become("median"), "median needs 3"),
    ("krum", 4, {}, claim(select=2), "krum says"),
]


@pytest.mark.parametrize(
    ("policy", "workers", "knobs", "breach", "words"),
    ROBUST,
    ids=[f"{number}-{case[0]}" for number, case in enumerate(ROBUST)],
)
def test_a_breach_of_a_robust_barrier_is_found(
    policy: str, workers: int, knobs: dict[str, Any], breach: Breach, words: str
) -> None:
    records = rounds(policy, workers, **knobs)
    assert verify(records).violations == ()
    breach(records)
    verdict = verify(records)
    found = [str(v) for v in verdict.violations if v.check == "policy guarantee"]
    assert any(words in sentence for sentence in found), [str(v) for v in verdict.violations]


def test_krum_on_two_servers_is_found() -> None:
    records = rounds("krum", 3)
    records[0]["servers"] = 2
    assert any("krum" in str(v) for v in verify(records).violations)


def test_no_built_in_policy_is_without_a_guarantee() -> None:
    for name in names():
        job = {"kind": "job", "job": "j", "policy": {"name": name}, "format": 2}
        log: list[Record] = [{"i": 0, "t": 0.0, "servers": 1, "workers": 4, "seed": 0, **job}]
        assert not any("no guarantee is known" in note for note in verify(log).notes), name
