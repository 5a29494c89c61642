"""Knobs of the shelf that are refused, and what every entry must tell."""

import pytest

from psserver.policies import Apply, PolicyError, build, describe, names
from psserver.policies.builtin import SHELF, knobs_of
from tests.policies.table import sit


@pytest.mark.parametrize(
    ("name", "knobs", "sentence"),
    [
        ("k-sync", {"aggregate": 5}, "policy.aggregate is 5, but there are 4 workers: expected 1 .. 4"),
        ("k-sync", {"aggregate": 0}, "policy.aggregate is 0; expected at least 1"),
        ("k-sync", {"late": "never"}, "policy.late is 'never'; expected one of cancel, drop"),
        ("k-batch-sync", {"aggregate": 0}, "policy.aggregate is 0; expected at least 1"),
        ("rennala", {"aggregate": 0}, "policy.aggregate is 0; expected at least 1"),
        ("k-async", {"aggregate": 5}, "policy.aggregate is 5, but there are 4 workers: expected 1 .. 4"),
        ("k-batch-async", {"aggregate": 0}, "policy.aggregate is 0; expected at least 1"),
        ("softsync", {"n": 5}, "policy.n is 5, but there are 4 workers: an update of floor(workers / n)"),
        ("softsync", {"n": 0}, "policy.n is 0; expected at least 1"),
        ("fedbuff", {"aggregate": 0}, "policy.aggregate is 0; expected at least 1"),
        ("fedbuff", {"weight": "constant"}, "policy.weight is 'constant'; expected one of const, inverse"),
        ("fedbuff", {"a": -1.0}, "policy.a is -1.0; expected at least 0"),
        ("fedbuff", {"b": -1}, "policy.b is -1; expected at least 0"),
        ("fedbuff", {"norm": "max"}, "policy.norm is 'max'; expected one of mean, sum"),
        ("delay-adaptive", {"concurrency": -1}, "policy.concurrency is -1; expected at least 0"),
        ("ringmaster", {"threshold": 0}, "policy.threshold is 0; expected at least 1"),
        ("ringmaster", {"stops": 1}, "policy.stops is 1; expected true or false"),
        ("ringmaster", {"stops": "yes"}, "policy.stops is 'yes'; expected true or false"),
        ("ringmaster", {"threshold": True}, "policy.threshold is True; expected a whole number such as 4"),
        ("dssp", {"lower": -1}, "policy.lower is -1; expected at least 0"),
        ("dssp", {"lower": 4, "upper": 3}, "policy.upper is 3; expected at least policy.lower, which is 4"),
        ("dc-asgd", {"compensation": -0.5}, "policy.compensation is -0.5; expected at least 0"),
        ("dc-asgd", {"lambda": 1}, "policy dc-asgd has no knob 'lambda'; known: compensation"),
        ("dc-asgd-a", {"compensation": -0.5}, "policy.compensation is -0.5; expected at least 0"),
        ("dc-asgd-a", {"decay": 1.0}, "policy.decay is 1.0; expected less than 1"),
        ("dc-asgd-a", {"epsilon": 0.0}, "policy.epsilon is 0.0; expected more than 0"),
        ("gap-aware", {"decay": -0.1}, "policy.decay is -0.1; expected at least 0"),
        ("gap-aware", {"compensation": 1.0}, "policy gap-aware has no knob 'compensation'"),
        ("trimmed-mean", {"trim": -1}, "policy.trim is -1; expected at least 0"),
        ("trimmed-mean", {"trim": 2}, "policy.trim is 2, but there are 4 workers: nothing would be left"),
        (
            "krum",
            {"byzantine": 1},
            "policy.byzantine is 1, but there are 4 workers: expected at least 2 byzant",
        ),
        ("krum", {"byzantine": -1}, "policy.byzantine is -1; expected at least 0"),
        ("krum", {"select": 3}, "policy.select is 3; expected at most workers - byzantine - 2 = 2"),
        ("krum", {"select": 0}, "policy.select is 0; expected at least 1"),
    ],
)
def test_knobs_out_of_range(name: str, knobs: dict[str, object], sentence: str) -> None:
    with pytest.raises(PolicyError) as caught:
        build(name, knobs, 4)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("name", ["k-batch-sync", "rennala", "k-batch-async", "fedbuff"])
def test_an_update_may_take_more_than_one_of_each_where_nobody_waits(name: str) -> None:
    """Dutta et al. 2018 define K-batch-sync and K-batch-async for any K: who is done starts again at once."""
    table = sit(name, workers=2, aggregate=5)
    for turn in range(5):
        assert table.version == 0 and not table.waits("w0") and not table.waits("w1")
        table.commit(f"w{turn % 2}")
    assert table.version == 1
    assert [table.authors(update) for update in table.updates] == [["w0", "w1", "w0", "w1", "w0"]]
    assert table.updates[0].scale == 1 / 5


@pytest.mark.parametrize("name", names())
def test_every_entry_is_documented(name: str) -> None:
    entry = SHELF[name]
    first = (entry.__doc__ or "").splitlines()[0]
    assert first.endswith(".") and len(first) < 120
    for text in (entry.guarantee, entry.source, entry.cost.stores, entry.cost.work, entry.cost.waste):
        assert text
    for knob in knobs_of(entry):
        assert knob.meaning and knob.range
    assert entry.cost.waste in describe(name)


def test_an_update_of_one_is_unscaled_whatever_the_policy() -> None:
    for name in names():
        if name in ("trimmed-mean", "krum"):
            continue
        policy = sit(name, workers=1, **({"aggregate": 1} if "aggregate" in _knobs(name) else {}))
        assert [d.scale for d in policy.commit("w0") if isinstance(d, Apply)] == [1.0]


def _knobs(name: str) -> list[str]:
    return [knob.name for knob in knobs_of(SHELF[name])]
