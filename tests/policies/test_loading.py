"""From a name and knobs to a policy, or to one sentence that says what is wrong and what is known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from psserver.policies import (
    WORKERS,
    ComposedPolicy,
    Composition,
    Count,
    Decision,
    Event,
    Immediate,
    KeepAll,
    LocalRule,
    Policy,
    PolicyError,
    PolicySpec,
    TensorParts,
    Waiting,
    build,
    names,
)
from pswire.knobs import integer
from tests.sentences import Recorder


def refusal(name: str, knobs: Mapping[str, object] | None = None, workers: int = 4) -> str:
    with pytest.raises(PolicyError) as caught:
        build(name, knobs or {}, workers)
    return str(caught.value)


KNOWN = ", ".join(names())
ON_STALE = "one of drop, downweight, compensate, block"
ONE_LEFT = "; an update needs at least one contribution"
ONE_EACH = "; one contribution per worker and update; lower it or add workers"


def test_the_built_in_policies() -> None:
    assert names()[0] == "sync" and {"async", "bounded", "ssp"} < set(names())


@pytest.mark.parametrize("name", names())
def test_a_named_policy_says_its_name_and_all_its_knobs(name: str) -> None:
    policy = build(name, {}, 4)
    assert policy.name == name
    again = build(name, dict(policy.knobs), 4)
    assert again.knobs == policy.knobs


def test_knobs_are_taken_over() -> None:
    policy = build("bounded", {"aggregate": 2, "on_stale": "block", "compensation": 1}, 4)
    assert policy.knobs == {"aggregate": 2, "max_staleness": 4, "on_stale": "block", "compensation": 1}


@pytest.mark.parametrize(
    ("name", "knobs", "sentence"),
    [
        ("snyc", {}, "unknown policy 'snyc'; did you mean \"sync\"?, or module:Class of your own"),
        ("lottery", {}, f"unknown policy 'lottery'; known: {KNOWN}, or module:Class of your own"),
        ("ssp", {"slak": 1}, "policy ssp has no knob 'slak'; did you mean \"slack\"?"),
        ("async", {"slack": 1}, "policy async has no knob 'slack'"),
        ("ssp", {"slack": "3"}, "policy ssp: slack must be a whole number >= 0, got '3'"),
        ("ssp", {"slack": 1.5}, "policy ssp: slack must be a whole number >= 0, got 1.5"),
        ("ssp", {"slack": True}, "policy ssp: slack must be a whole number >= 0, got True"),
        ("ssp", {"slack": -1}, "policy ssp: slack must be a whole number >= 0, got -1"),
        (
            "ssp",
            {"slack": 2**63},
            "policy ssp: slack must be a whole number from 0 to 9223372036854775807, got 9223372036854775808",
        ),
        (
            "sync",
            {"backup": -1},
            "policy sync: backup must be a whole number >= 0 and <= workers - 1 (3), got -1" + ONE_LEFT,
        ),
        (
            "bounded",
            {"aggregate": 0},
            "policy bounded: aggregate must be a whole number >= 1 and <= workers (4), got 0" + ONE_EACH,
        ),
        (
            "bounded",
            {"max_staleness": -2},
            "policy bounded: max_staleness must be a whole number >= 0, got -2",
        ),
        (
            "bounded",
            {"compensation": "a lot"},
            "policy bounded: compensation must be a number >= 0, got 'a lot'",
        ),
        ("bounded", {"compensation": True}, "policy bounded: compensation must be a number >= 0, got True"),
        ("bounded", {"compensation": -0.1}, "policy bounded: compensation must be a number >= 0, got -0.1"),
        (
            "bounded",
            {"compensation": float("nan")},
            "policy bounded: compensation must be a number >= 0, got nan",
        ),
        (
            "bounded",
            {"compensation": float("inf")},
            "policy bounded: compensation must be a number >= 0, got inf",
        ),
        (
            "bounded",
            {"on_stale": 3},
            f"policy bounded: on_stale must be {ON_STALE}, got 3",
        ),
        (
            "bounded",
            {"on_stale": "ignore"},
            f"policy bounded: on_stale must be {ON_STALE}, got 'ignore'",
        ),
    ],
)
def test_what_is_wrong_is_said(name: str, knobs: dict[str, object], sentence: str) -> None:
    assert refusal(name, knobs) == sentence


def test_more_contributions_than_workers() -> None:
    message = refusal("bounded", {"aggregate": 5}, workers=4)
    assert message.endswith("got 5; one contribution per worker and update; lower it or add workers")
    assert build("bounded", {"aggregate": 4}, 4).knobs["aggregate"] == 4


def test_as_many_backups_as_workers() -> None:
    message = refusal("sync", {"backup": 4}, workers=4)
    assert "<= workers - 1 (3), got 4; an update needs at least one contribution" in message
    assert build("sync", {"backup": 3}, 4).knobs["backup"] == 3


def test_a_default_may_be_out_of_range_for_so_few_workers() -> None:
    assert "aggregate must be a whole number >= 1 and <= workers (1), got 2" in refusal("k-sync", workers=1)


class Least(Policy):
    """The least that a policy of one's own needs."""

    def __init__(self, *, workers: int, patience: int = 3) -> None:
        self.workers = workers

    def step(self, event: Event) -> list[Decision]:
        return []

    def explain(self, worker: str) -> Waiting | None:
        return None


class Own(Least):
    """With a name and knobs that it sets itself."""

    name = "own"

    def __init__(self, *, workers: int, patience: int = 3) -> None:
        super().__init__(workers=workers)
        self.knobs = {"patience": min(patience, 5)}


class Composed(ComposedPolicy):
    def __init__(self, workers: int, size: int = 2, **more: object) -> None:
        super().__init__(Composition(gate=Immediate(), trigger=Count(size), staleness=KeepAll()))


@dataclass(frozen=True, slots=True)
class Specified(PolicySpec):
    """Every update is the mean of `size` gradients."""

    size: int = integer(2, "contributions per update", at_least=1, at_most=WORKERS)

    def compose(self, workers: int) -> Composition:
        return Composition(gate=Immediate(), trigger=Count(self.size), staleness=KeepAll())


@dataclass(frozen=True, slots=True)
class Uncomposed(PolicySpec):
    """Says nothing of what it is made of."""


@dataclass(frozen=True, slots=True)
class Rangeless(PolicySpec):
    """A field that is no knob."""

    size: int = 2


@dataclass(frozen=True, slots=True)
class ComposesNothing(PolicySpec):
    """Forgets its return."""

    def compose(self, workers: int) -> Composition:
        return None  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Composes(PolicySpec):
    """What a test says."""

    def compose(self, workers: int) -> Composition:
        raise AssertionError("a test says what")


class Forgetful(ComposedPolicy):
    def __init__(self, workers: int) -> None:
        pass


class Undecorated(PolicySpec):
    """Not a dataclass."""

    size: int = integer(2, "contributions per update", at_least=1)


class Half(Policy):
    """Lacks what makes a policy."""

    def __init__(self, *, workers: int) -> None:
        pass


class Duck:
    """Has all methods, as a policy had before there was a base class."""

    name, knobs, tensors = "duck", dict[str, object](), TensorParts()

    def __init__(self, *, workers: int) -> None:
        pass

    def step(self, event: Event) -> list[Decision]:
        return []

    def explain(self, worker: str) -> Waiting | None:
        return None


class NoWorkers(Least):
    def __init__(self, patience: int = 3) -> None:
        pass


class Fails(Least):
    def __init__(self, *, workers: int) -> None:
        raise ZeroDivisionError("by workers")


class Nameless(Own):
    name = ""


class Numbered(Own):
    name = 3  # type: ignore[assignment]


class Unwritable(Least):
    def __init__(self, *, workers: int) -> None:
        self.knobs = {"chosen": {1, 2}}


class NotANumber(Least):
    knobs = {"rate": float("nan")}


class Listed(Least):
    knobs = ["patience"]  # type: ignore[assignment]


class Tensors(Least):
    tensors = "mean"  # type: ignore[assignment]


class Local(Least):
    local_rule = "gradient"  # type: ignore[assignment]


class Ahead(Least):
    ahead = 1  # type: ignore[assignment]


class Broken(Least):
    @property
    def tensors(self) -> TensorParts:  # type: ignore[override]
        raise KeyError("parts")


def made_of_nothing(workers: int) -> object:
    return None


HERE = "tests.policies.test_loading"


def test_a_policy_of_ones_own() -> None:
    policy = build(f"{HERE}:Own", {"patience": 7}, 4)
    assert type(policy).__name__ == "Own"
    assert (policy.name, policy.knobs) == ("own", {"patience": 5})


@pytest.mark.parametrize(
    ("name", "given", "knobs"),
    [
        ("Least", {}, {"patience": 3}),
        ("Least", {"patience": 7}, {"patience": 7}),
        ("Composed", {"size": 1}, {"size": 1}),
        ("Composed", {"colour": "red"}, {"size": 2, "colour": "red"}),
        ("Specified", {}, {"size": 2}),
        ("Nameless", {}, {"patience": 3}),
    ],
)
def test_name_and_knobs_are_set_where_the_author_gives_none(
    name: str, given: dict[str, object], knobs: dict[str, object]
) -> None:
    policy = build(f"{HERE}:{name}", given, 4)
    assert (policy.name, policy.knobs) == (f"{HERE}:{name}", knobs)
    assert build(f"{HERE}:{name}", policy.knobs, 4).knobs == knobs


def test_what_a_base_class_says_of_a_policy() -> None:
    policy = build(f"{HERE}:Least", {}, 4)
    assert policy.tensors == TensorParts() and policy.local_rule.plain and policy.ahead is False
    assert Policy.knobs == {} and Policy.name == ""


def test_a_spec_of_ones_own_has_ranges(sentences: Recorder) -> None:
    sentences.check(refusal(f"{HERE}:Specified", {"size": 5}))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "Duck",
            ": the class Duck is no Policy; derive it from psserver.policies.Policy, or give a PolicySpec",
        ),
        ("Half", ": the class lacks explain, step; see psserver.policies.Policy"),
        (
            "NoWorkers",
            ": expected NoWorkers(patience: int = 3) -> None to take workers by name: got an unexpected ",
        ),
        ("Fails", ": its __init__ raised ZeroDivisionError: by workers"),
        ("Numbered", ": name is 3; expected a text"),
        ("Unwritable", ": its knobs {'chosen': {1, 2}} are not JSON, as the decision log needs: "),
        ("NotANumber", ": its knobs {'rate': nan} are not JSON"),
        ("Listed", ": knobs is ['patience']; expected a mapping from names to values"),
        ("Tensors", ": tensors is 'mean'; expected TensorParts(...)"),
        ("Local", ": local_rule is 'gradient'; expected LocalRule(...)"),
        ("Ahead", ": ahead is 1; expected True or False"),
        ("Broken", ": its tensors raised KeyError: 'parts'"),
        ("HERE", ": it is 'tests.policies.test_loading'; derive it from"),
        ("made_of_nothing", ": it is <function made_of_nothing at "),
        (
            "Uncomposed",
            ": compose(workers) raised NotImplementedError: Uncomposed.compose(workers) is missing",
        ),
        ("ComposesNothing", ": compose(workers) returned None; expected a Composition"),
        ("Forgetful", ": its __init__ does not call super().__init__(composition) of ComposedPolicy"),
        ("Undecorated", ": a PolicySpec is a dataclass; put @dataclass(frozen=True) above it"),
    ],
)
def test_an_authors_mistake_is_told_in_a_sentence(name: str, sentence: str) -> None:
    assert refusal(f"{HERE}:{name}").startswith(f"policy '{HERE}:{name}'{sentence}")


def test_a_field_without_a_range_is_told_in_a_sentence() -> None:
    assert refusal(f"{HERE}:Rangeless").startswith(
        "Rangeless.size: a field is a knob; give it its range and meaning, as in size: float = "
    )


def mean(**parts: Any) -> Composition:
    return Composition(**{"gate": Immediate(), "trigger": Count(1), "staleness": KeepAll(), **parts})


@pytest.mark.parametrize(
    ("compose", "sentence"),
    [
        (lambda: mean(gate=Immediate), "gate: expected an object, got the class Immediate; write Immediate("),
        (lambda: mean(trigger=3), "trigger: 3 lacks fires; see psserver.policies.parts"),
        (lambda: mean(norm="sums"), "norm: expected 'mean' or 'sum', got 'sums'"),
        (
            lambda: mean(local=LocalRule("sgd", {"learning_rate": "ten"})),
            "local rule sgd: expected a number under a name, got 'learning_rate': 'ten'",
        ),
        (
            lambda: mean(local=LocalRule("sgd", {"learning_rate": float("nan")})),
            "local rule sgd: learning_rate is nan; expected a finite number",
        ),
        (
            lambda: mean(local=LocalRule("sgd", None)),
            "local rule sgd: expected its knobs as a mapping from names to numbers, got None",
        ),
        (
            lambda: mean(tensors=TensorParts(aggregator="trimmed-mean", knobs={"trim": "one"})),
            "compensator None and aggregator trimmed-mean: expected a number under a name, got 'trim'",
        ),
    ],
)
def test_a_wrong_part_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, compose: Callable[[], Composition], sentence: str
) -> None:
    monkeypatch.setattr(Composes, "compose", lambda self, workers: compose())
    assert refusal(f"{HERE}:Composes").startswith(sentence)


def test_a_module_that_does_not_import() -> None:
    assert refusal("no.such.module:Own").startswith(
        "policy 'no.such.module:Own': cannot import 'no.such.module': No module named"
    )


def test_a_module_that_raises(tmp_path: object, monkeypatch: pytest.MonkeyPatch, sentences: Recorder) -> None:
    """Importing somebody's module runs somebody's code."""
    (broken := __import__("pathlib").Path(str(tmp_path)) / "broken_policy.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(broken.parent))
    message = refusal("broken_policy:Own")
    sentences.check(message)


@pytest.mark.parametrize("name", [":Own", "module:", "a:b:c", "..x:Own"])
def test_a_name_that_is_no_name(name: str) -> None:
    assert refusal(name).startswith(f"policy {name!r}: ")


def test_a_class_that_is_not_there() -> None:
    assert refusal(f"{HERE}:Owm").startswith(
        f"policy '{HERE}:Owm': {HERE} has no 'Owm'; did you mean \"Own\"?"
    )


def test_a_module_with_many_names_is_not_listed(sentences: Recorder) -> None:
    """os has hundreds."""
    assert refusal("os:pathh").startswith("policy 'os:pathh': os has no 'pathh'; did you mean \"path\"")
    assert len(refusal("os:pathh")) < 120
    sentences.check(refusal("os:Zzzz"))
    assert f"{HERE} has no 'Zzzz'; its policies: Least, Own, Composed, Specified, " in refusal(f"{HERE}:Zzzz")


def test_a_knob_that_the_class_does_not_take(sentences: Recorder) -> None:
    sentences.check(refusal(f"{HERE}:Own", {"slack": 1}))
