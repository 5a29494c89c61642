"""`ps-lab check` knows what each built-in policy guarantees: it finds breaches planted in honest logs."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import pytest

from pslab.check.known import KNOWN
from psserver.policies import names
from psserver.policies.parts.weights import FAMILIES
from tests.coordinator.settings import Setting
from tests.lab.logs import Record, changed, renumber, verify

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


def stale_part(**fields: Any) -> Breach:
    """Change the first part that is stale."""

    def change(records: list[Record]) -> None:
        parts = [p for r in records if r["kind"] == "apply" for p in r["parts"] if p["staleness"] > 0]
        parts[0].update(fields)

    return change


def spare_one(records: list[Record]) -> None:
    """A cancel for an update vanishes."""
    records.remove(next(r for r in records if r["kind"] == "cancel" and r["reason"].startswith("version ")))
    renumber(records)


def cancel_one(records: list[Record]) -> None:
    """An update cancels a ticket that is young enough: one granted right before it."""
    at = next(n for n, r in enumerate(records) if r["kind"] == "grant" and r["version"] == 1)
    grant = records[at]
    reason = "version 1 was made without it"
    records.insert(
        at + 1, {"kind": "cancel", "worker": grant["worker"], "ticket": grant["ticket"], "reason": reason}
    )
    renumber(records)


def swap_author(records: list[Record]) -> None:
    """An update of two has both parts of one worker."""
    update = next(r for r in records if r["kind"] == "apply" and len(r["parts"]) == 2)
    update["parts"][1]["worker"] = update["parts"][0]["worker"]


def forget_timers(records: list[Record]) -> None:
    """The timers' entries vanish."""
    records[:] = [record for record in records if record["kind"] != "timer"]
    renumber(records)


# Updates go on without late workers, again and again.
HURRIED: dict[str, object] = {"grace": 0.05, "share": 0.0, "budget": 1.0, "patience": 0}

PLANTED: list[tuple[str, dict[str, object], Breach, str]] = [
    ("k-sync", {"aggregate": 2}, claim(aggregate=3), "has 2 parts, the policy takes 3"),
    ("k-sync", {"aggregate": 2}, claim(aggregate=1), "has 2 parts, the policy takes 1"),
    ("k-sync", {"aggregate": 2}, swap_author, "applies 2 contributions of"),
    ("k-sync", {"aggregate": 2}, spare_one, "the policy cancels at 1"),
    ("k-sync", {"aggregate": 2}, claim(late="drop"), "this policy cancels nothing"),
    ("k-sync", {"aggregate": 2, "late": "drop"}, claim(late="cancel"), "the policy cancels at 1"),
    ("k-sync", {"aggregate": 2}, changed("apply", scale=1.0), "a mean of 2 needs 0.5"),
    ("k-batch-sync", {"aggregate": 2}, claim(name="k-sync"), "waits for an update"),
    ("k-batch-sync", {"aggregate": 2}, spare_one, "the policy cancels at 1"),
    ("k-batch-async", {"aggregate": 2}, claim(name="rennala"), "the policy's bound is 0"),
    ("rennala", {"aggregate": 2}, claim(name="k-async"), "this policy drops nothing"),
    ("rennala", {"aggregate": 2}, cancel_one, "this policy cancels nothing"),
    ("k-async", {"aggregate": 2}, claim(name="k-sync"), "the policy's bound is 0"),
    ("k-batch-async", {"aggregate": 2}, claim(name="k-async"), "waits for an update"),
    ("k-batch-async", {"aggregate": 2}, claim(aggregate=1), "has 2 parts, the policy takes 1"),
    ("softsync", {"n": 2}, claim(n=4), "has 2 parts, the policy takes 1"),
    ("softsync", {"n": 4}, stale_part(factor=0.1), "has factor 0.1, the policy gives"),
    ("softsync", {"n": 4}, claim(n=0), "has an invalid knob"),
    ("fedbuff", {"aggregate": 1}, claim(weight="const"), "the policy gives 1.0"),
    ("fedbuff", {"aggregate": 1}, claim(a=0.25), "the policy gives 0."),
    ("fedbuff", {"aggregate": 2}, claim(norm="sum"), "a sum of 2 needs 1.0"),
    ("delay-adaptive", {"concurrency": 1}, claim(concurrency=0), "the policy gives 1.0"),
    ("delay-adaptive", {"concurrency": 1}, changed("apply", lr_scale=0.9), "has lr_scale 0.9"),
    ("async", {}, claim(name="delay-adaptive", concurrency=1), "has lr_scale 1.0, the policy gives 0.5"),
    ("async", {}, claim(name="ringmaster", threshold=2), "the policy's bound is 1"),
    ("ringmaster", {"threshold": 2}, claim(threshold=9), "is dropped as stale at staleness 2"),
    ("ringmaster", {"threshold": 2, "stops": True}, claim(stops=False), "this policy cancels nothing"),
    ("ringmaster", {"threshold": 2, "stops": True}, spare_one, "the policy cancels at 2"),
    ("ringmaster", {"threshold": 2, "stops": True}, cancel_one, "is cancelled 0 versions after its base"),
    ("dc-asgd", {}, stale_part(compensation=0.0), "has compensation 0.0, the policy gives 0.04"),
    ("async", {}, claim(name="dc-asgd"), "has compensation 0.0, the policy gives 0.04"),
    ("dc-asgd-a", {}, stale_part(compensation=0.0), "has compensation 0.0, the policy gives 2.0"),
    (
        "dc-asgd-a",
        {},
        claim(decay=0.5),
        "uses compensator adaptive-taylor, aggregator mean, numbers {'decay': 0.5",
    ),
    ("dc-asgd", {}, claim(name="dc-asgd-a", compensation=2.0), "the policy gives 2.0"),
    ("dc-asgd", {}, claim(name="gap-aware"), "use compensator taylor"),
    ("gap-aware", {}, stale_part(compensation=0.5), "has compensation 0.5, the policy gives 1.0"),
    ("gap-aware", {}, claim(name="async"), "async uses compensator none"),
    ("async", {}, claim(name="dssp", lower=0, upper=0), "slack is 0"),
    ("deadline-sync", HURRIED, forget_timers, "no deadline has passed"),
    ("deadline-sync", HURRIED, claim(name="sync"), "which this policy does not set"),
    ("deadline-sync", HURRIED, changed("timer", tag="other"), "which this policy does not set"),
    ("deadline-sync", HURRIED, claim(share=1.0), "needs a share of 1"),
    ("deadline-sync", HURRIED, claim(budget=0.0), "the budget of 0 allows"),
    ("deadline-sync", HURRIED, claim(patience=1), "patience is 1"),
    ("deadline-sync", HURRIED, spare_one, "the policy cancels at 1"),
    ("dbw", {"noise": 0.0}, spare_one, "the policy cancels at 1"),
    ("dbw", {"noise": 0.0}, claim(name="sync"), "is made without"),
    ("fedbuff-timeout", {"timeout": 0.1, "aggregate": 4}, forget_timers, "no deadline has passed"),
    ("fedbuff-timeout", {"timeout": 0.1, "aggregate": 4}, claim(aggregate=1), "the policy takes 1"),
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


def fold_one(records: list[Record]) -> None:
    """The first part of an update is summed before it."""
    at = next(n for n, r in enumerate(records) if r["kind"] == "apply")
    records.insert(at, {"kind": "fold", "ticket": records[at]["parts"][0]["ticket"], "factor": 1.0})
    renumber(records)


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
    ("median", 3, {}, fold_one, "this policy needs all contributions at once"),
    ("median", 3, {}, changed("apply", scale=0.5), "needs 1"),
    ("median", 3, {}, claim(name="sync"), "a mean of 3 needs"),
    (
        "median",
        3,
        {},
        claim(name="trimmed-mean"),
        "trimmed-mean uses compensator none, aggregator trimmed-mean",
    ),
    ("median", 3, {}, drop_all, "as too few; 3 are enough"),
    ("trimmed-mean", 3, {"trim": 0}, claim(trim=2), "this policy needs 5"),
    ("trimmed-mean", 3, {}, drop_all, "dropped among 3 contributions as too few; 3 are enough"),
    ("krum", 4, {}, claim(byzantine=1), "this policy needs 5"),
    ("krum", 4, {}, claim(select=2), "krum uses compensator none, aggregator krum"),
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
    assert any("divided over 2 servers" in str(v) for v in verify(records).violations)


@pytest.mark.parametrize("weight", FAMILIES)
def test_every_weight_family_is_known(weight: str) -> None:
    records = lively("fedbuff", aggregate=1, weight=weight, a=0.3, b=1)
    claim(weight="const" if weight != "const" else "inverse")(records)
    assert not verify(records).ok


def test_no_built_in_policy_is_without_a_guarantee() -> None:
    for name in names():
        job = {"kind": "job", "job": "j", "policy": {"name": name}, "format": 2}
        log: list[Record] = [{"i": 0, "t": 0.0, "servers": 1, "workers": 4, "seed": 0, **job}]
        assert not any("no guarantee is known" in note for note in verify(log).notes), name
    assert set(KNOWN) == set(names())
