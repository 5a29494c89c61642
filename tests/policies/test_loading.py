"""From a name and knobs to a policy, or to one sentence that says what is wrong and what is known."""

from collections.abc import Mapping

import pytest

from psserver.policies import Decision, Event, PolicyError, TensorParts, Waiting, build, describe, names


def refusal(name: str, knobs: Mapping[str, object] | None = None, workers: int = 4) -> str:
    with pytest.raises(PolicyError) as caught:
        build(name, knobs or {}, workers)
    return str(caught.value)


KNOWN = ", ".join(names())


def test_the_shelf() -> None:
    assert names()[:4] == ("sync", "async", "bounded", "ssp")


@pytest.mark.parametrize("name", names())
def test_a_named_policy_says_its_name_and_all_its_knobs(name: str) -> None:
    policy = build(name, {}, 4)
    assert policy.name == name
    again = build(name, dict(policy.knobs), 4)
    assert again.knobs == policy.knobs


@pytest.mark.parametrize("name", names())
def test_a_named_policy_is_described(name: str) -> None:
    text = describe(name)
    assert text.startswith(f"{name}: ")
    assert "guarantee: " in text and "source: " in text
    for knob, value in build(name, {}, 4).knobs.items():
        assert f"{knob} = {value!r}: " in text


def test_knobs_are_taken_over() -> None:
    policy = build("bounded", {"aggregate": 2, "on_stale": "block", "compensation": 1}, 4)
    assert policy.knobs == {"aggregate": 2, "max_staleness": 4, "on_stale": "block", "compensation": 1}


@pytest.mark.parametrize(
    ("name", "knobs", "sentence"),
    [
        (
            "snyc",
            {},
            f"unknown policy 'snyc'; did you mean 'sync'? Known: {KNOWN}, or module:Class of your own",
        ),
        (
            "lottery",
            {},
            f"unknown policy 'lottery'; known: {KNOWN}, or module:Class of your own",
        ),
        ("ssp", {"slak": 1}, "policy ssp has no knob 'slak'; did you mean 'slack'? Known: slack"),
        ("async", {"slack": 1}, "policy async has no knob 'slack'; known: none"),
        ("ssp", {"slack": "3"}, "policy.slack is '3'; expected a whole number such as 3"),
        ("ssp", {"slack": 1.5}, "policy.slack is 1.5; expected a whole number such as 3"),
        ("ssp", {"slack": True}, "policy.slack is True; expected a whole number such as 3"),
        ("ssp", {"slack": -1}, "policy.slack is -1; expected at least 0"),
        ("sync", {"backup": -1}, "policy.backup is -1; expected at least 0"),
        ("bounded", {"aggregate": 0}, "policy.aggregate is 0; expected at least 1"),
        ("bounded", {"max_staleness": -2}, "policy.max_staleness is -2; expected at least 0"),
        (
            "bounded",
            {"compensation": "a lot"},
            "policy.compensation is 'a lot'; expected a number such as 0.04",
        ),
        ("bounded", {"compensation": True}, "policy.compensation is True; expected a number such as 0.04"),
        ("bounded", {"compensation": -0.1}, "policy.compensation is -0.1; expected at least 0"),
        ("bounded", {"compensation": float("nan")}, "policy.compensation is nan; expected a finite number"),
        ("bounded", {"compensation": float("inf")}, "policy.compensation is inf; expected a finite number"),
        ("bounded", {"on_stale": 3}, "policy.on_stale is 3; expected a word such as 'drop'"),
        (
            "bounded",
            {"on_stale": "ignore"},
            "policy.on_stale is 'ignore'; expected one of drop, downweight, compensate, block",
        ),
    ],
)
def test_what_is_wrong_is_said(name: str, knobs: dict[str, object], sentence: str) -> None:
    assert refusal(name, knobs).startswith(sentence)


def test_more_contributions_than_workers() -> None:
    message = refusal("bounded", {"aggregate": 5}, workers=4)
    assert message.startswith("policy.aggregate is 5, but there are 4 workers")
    assert build("bounded", {"aggregate": 4}, 4).knobs["aggregate"] == 4


def test_as_many_backups_as_workers() -> None:
    message = refusal("sync", {"backup": 4}, workers=4)
    assert message.startswith("policy.backup is 4, but there are 4 workers")
    assert message.endswith("expected backup <= 3")
    assert build("sync", {"backup": 3}, 4).knobs["backup"] == 3


class Own:
    """The least that a policy of one's own needs."""

    name = "own"
    tensors = TensorParts()

    def __init__(self, *, workers: int, patience: int = 3) -> None:
        self.knobs: dict[str, object] = {"patience": patience}
        self.workers = workers

    def step(self, event: Event) -> list[Decision]:
        return []

    def explain(self, worker: str) -> Waiting | None:
        return None


class Half:
    """Lacks what makes a policy."""

    name = "half"

    def __init__(self, *, workers: int) -> None:
        self.knobs: dict[str, object] = {}


HERE = "tests.policies.test_loading"


def test_a_policy_of_ones_own() -> None:
    policy = build(f"{HERE}:Own", {"patience": 7}, 4)
    assert type(policy).__name__ == "Own"
    assert policy.knobs == {"patience": 7}
    assert vars(policy)["workers"] == 4


def test_a_module_that_does_not_import() -> None:
    assert refusal("no.such.module:Own").startswith(
        "policy 'no.such.module:Own': cannot import 'no.such.module': No module named"
    )


def test_a_module_that_raises(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing somebody's module runs somebody's code."""
    (broken := __import__("pathlib").Path(str(tmp_path)) / "broken_policy.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(broken.parent))
    message = refusal("broken_policy:Own")
    assert message == (
        "policy 'broken_policy:Own': cannot import 'broken_policy': ZeroDivisionError: division by zero"
    )


@pytest.mark.parametrize("name", [":Own", "module:", "a:b:c", "..x:Own"])
def test_a_name_that_is_no_name(name: str) -> None:
    assert refusal(name).startswith(f"policy {name!r}: ")


def test_a_class_that_is_not_there() -> None:
    assert refusal(f"{HERE}:Owm").startswith(f"policy '{HERE}:Owm': {HERE} has no 'Owm'; did you mean 'Own'?")


def test_a_module_with_many_names_is_not_listed() -> None:
    """os has hundreds."""
    assert refusal("os:pathh").startswith("policy 'os:pathh': os has no 'pathh'; did you mean 'path'")
    assert len(refusal("os:pathh")) < 120
    assert refusal("os:Zzzz") == "policy 'os:Zzzz': os has no 'Zzzz'; there is no policy in it"
    assert refusal(f"{HERE}:Zzzz").endswith(f"{HERE} has no 'Zzzz'; its policies: Own")


def test_a_knob_that_the_class_does_not_take() -> None:
    message = refusal(f"{HERE}:Own", {"slack": 1})
    assert message.startswith(f"policy '{HERE}:Own' does not accept workers=4 and {{'slack': 1}}: ")


def test_a_class_that_is_no_policy() -> None:
    assert refusal(f"{HERE}:Half") == (
        f"policy '{HERE}:Half' lacks tensors, step, explain; see psserver.policies.Policy"
    )


def test_something_that_is_no_class() -> None:
    assert refusal(f"{HERE}:HERE").startswith(f"policy '{HERE}:HERE' does not accept workers=4")
