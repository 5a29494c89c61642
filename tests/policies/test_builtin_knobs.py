"""Knobs of built-in policies that are refused, and what must be known of every policy."""

import pytest

from psserver.policies import Apply, PolicyError, build, names
from psserver.policies.builtin import BUILTIN
from pswire.knobs import knobs_of
from tests.policies.harness import start_policy


@pytest.mark.parametrize(
    ("name", "knobs", "sentence"),
    [
        (
            "k-sync",
            {"aggregate": 5},
            "aggregate must be a whole number >= 1 and <= workers (4), got 5; one contri",
        ),
        ("k-sync", {"aggregate": 0}, "aggregate must be a whole number >= 1 and <= workers (4), got 0"),
        ("k-sync", {"late": "never"}, "late must be one of cancel, drop, got 'never'"),
        ("k-batch-sync", {"aggregate": 0}, "aggregate must be a whole number >= 1, got 0"),
        ("rennala", {"aggregate": 0}, "aggregate must be a whole number >= 1, got 0"),
        ("k-async", {"aggregate": 5}, "aggregate must be a whole number >= 1 and <= workers (4), got 5"),
        ("k-batch-async", {"aggregate": 0}, "aggregate must be a whole number >= 1, got 0"),
        (
            "softsync",
            {"n": 5},
            "n must be a whole number >= 1 and <= workers (4), got 5; an update of",
        ),
        ("softsync", {"n": 0}, "n must be a whole number >= 1 and <= workers (4), got 0"),
        ("fedbuff", {"aggregate": 0}, "aggregate must be a whole number >= 1, got 0"),
        (
            "fedbuff",
            {"weight": "constant"},
            "weight must be one of const, inverse, polynomial, hinge",
        ),
        ("fedbuff", {"a": -1.0}, "a must be a number >= 0, got -1.0"),
        ("fedbuff", {"b": -1}, "b must be a whole number >= 0, got -1"),
        ("fedbuff", {"norm": "max"}, "norm must be one of mean, sum, got 'max'"),
        ("delay-adaptive", {"concurrency": -1}, "concurrency must be a whole number >= 0, got -1"),
        ("ringmaster", {"threshold": 0}, "threshold must be a whole number >= 1, got 0"),
        ("ringmaster", {"stops": 1}, "stops must be true or false, got 1"),
        ("ringmaster", {"stops": "yes"}, "stops must be true or false, got 'yes'"),
        ("ringmaster", {"threshold": True}, "threshold must be a whole number >= 1, got True"),
        ("dssp", {"lower": -1}, "lower must be a whole number >= 0, got -1"),
        ("dssp", {"lower": 4, "upper": 3}, "upper must be a whole number >= lower (4), got 3"),
        ("dc-asgd", {"compensation": -0.5}, "compensation must be a number >= 0, got -0.5"),
        ("dc-asgd-a", {"compensation": -0.5}, "compensation must be a number >= 0, got -0.5"),
        ("dc-asgd-a", {"decay": 1.0}, "decay must be a number >= 0 and < 1, got 1.0"),
        ("dc-asgd-a", {"epsilon": 0.0}, "epsilon must be a number > 0, got 0.0"),
        ("gap-aware", {"decay": -0.1}, "decay must be a number >= 0 and < 1, got -0.1"),
        (
            "trimmed-mean",
            {"trim": -1},
            "trim must be a whole number >= 0 and <= (workers - 1) / 2 (1), got -1",
        ),
        (
            "trimmed-mean",
            {"trim": 2},
            "trim must be a whole number >= 0 and <= (workers - 1) / 2 (1), got 2; noth",
        ),
        (
            "krum",
            {"byzantine": 1},
            "byzantine must be a whole number >= 0 and <= (workers - 3) / 2 (0), got 1; th",
        ),
        (
            "krum",
            {"byzantine": -1},
            "byzantine must be a whole number >= 0 and <= (workers - 3) / 2 (0), got -1",
        ),
        (
            "krum",
            {"select": 3},
            "select must be a whole number >= 1 and <= workers - byzantine - 2 (2), got 3",
        ),
        (
            "krum",
            {"select": 0},
            "select must be a whole number >= 1 and <= workers - byzantine - 2 (2), got 0",
        ),
        ("easgd", {"alpha": 1.5}, "alpha must be a number from 0 to 1, got 1.5; at 1 both change places"),
        ("local-sgd", {"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ("diloco", {"beta_1": 1.0}, "beta_1 must be a number >= 0 and < 1, got 1.0"),
    ],
)
def test_knobs_out_of_range(name: str, knobs: dict[str, object], sentence: str) -> None:
    with pytest.raises(PolicyError) as caught:
        build(name, knobs, 4)
    assert str(caught.value).startswith(f"policy {name}: {sentence}")


@pytest.mark.parametrize(
    ("name", "knobs", "sentence"),
    [
        ("dc-asgd", {"lambda": 1}, "policy dc-asgd has no knob 'lambda'; known: compensation"),
        (
            "gap-aware",
            {"compensation": 1.0},
            "policy gap-aware has no knob 'compensation'; known: decay, epsilon",
        ),
        ("async", {"slack": 1}, "policy async has no knob 'slack'"),
    ],
)
def test_unknown_knobs(name: str, knobs: dict[str, object], sentence: str) -> None:
    with pytest.raises(PolicyError) as caught:
        build(name, knobs, 4)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", ["k-batch-sync", "rennala", "k-batch-async", "fedbuff"])
def test_an_update_may_take_more_than_one_of_each_where_nobody_waits(name: str) -> None:
    """Dutta et al. 2018 define K-batch-sync and K-batch-async for any K: who is done starts again at once."""
    harness = start_policy(name, workers=2, aggregate=5)
    for turn in range(5):
        assert harness.version == 0 and not harness.waits("w0") and not harness.waits("w1")
        harness.commit(f"w{turn % 2}")
    assert harness.version == 1
    assert [harness.authors(update) for update in harness.updates] == [["w0", "w1", "w0", "w1", "w0"]]
    assert harness.updates[0].scale == 1 / 5


@pytest.mark.parametrize("name", names())
def test_every_entry_is_documented(name: str) -> None:
    entry = BUILTIN[name]
    first = (entry.__doc__ or "").splitlines()[0]
    assert first.endswith(".") and len(first) < 120
    for text in (
        entry.use_when,
        entry.guarantee,
        entry.source,
        entry.cost.stores,
        entry.cost.work,
        entry.cost.waste,
    ):
        assert text
    for knob in knobs_of(entry):
        assert knob.meaning and knob.domain.describe()


def test_an_update_of_one_is_unscaled_whatever_the_policy() -> None:
    for name in names():
        if name in ("trimmed-mean", "krum"):
            continue
        policy = start_policy(name, workers=1, **({"aggregate": 1} if "aggregate" in _knobs(name) else {}))
        assert [d.scale for d in policy.commit("w0") if isinstance(d, Apply)] == [1.0]


def _knobs(name: str) -> list[str]:
    return [knob.name for knob in knobs_of(BUILTIN[name])]
