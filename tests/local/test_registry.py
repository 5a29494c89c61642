"""What the servers say about a rule is looked at before it is believed; policies say what workers know."""

import math

import pytest

from psserver.policies import LocalRule, PolicyError, facts, names
from psserver.policies import build as build_policy
from psserver.policies.composition import Composition
from psserver.policies.parts.gates import WaitForUpdate
from psserver.policies.parts.staleness_rules import DropStale
from psserver.policies.parts.triggers import CancelStale, Everyone
from psworker.local import LocalRuleError, build


@pytest.mark.parametrize(
    ("name", "knobs", "sentence"),
    [
        ("local-sdg", {}, "expected a local rule that this worker knows (gradient, local-sgd, "),
        ("local-sgd", {"steps": 3}, "expected the knobs steps, learning_rate, got steps"),
        ("gradient", {"steps": 3}, "expected the knobs none, got steps"),
        (
            "local-sgd",
            {"steps": 2.5, "learning_rate": 0.1},
            "steps must be a whole number >= 1, got 2.5",
        ),
        (
            "local-sgd",
            {"steps": 0, "learning_rate": 0.1},
            "steps must be a whole number >= 1, got 0",
        ),
        ("local-sgd", {"steps": 1, "learning_rate": 0}, "learning_rate must be a number > 0, got 0"),
        ("local-sgd", {"steps": 1, "learning_rate": math.nan}, "learning_rate must be a number > 0, got nan"),
        (
            "local-sgd",
            {"steps": math.inf, "learning_rate": 1},
            f"steps must be a whole number from 1 to {2**63 - 1}, got inf",
        ),
        ("dana-slim", {"momentum": 1}, "momentum must be a number >= 0 and < 1, got 1"),
    ],
)
def test_refused(name: str, knobs: dict[str, float], sentence: str) -> None:
    with pytest.raises(LocalRuleError) as caught:
        build(name, knobs, [3])
    assert sentence in str(caught.value)


def test_no_name_is_the_plain_rule() -> None:
    assert build("", {}, [1]).steps == 1


@pytest.mark.parametrize("name", names())
def test_workers_know_what_every_built_in_policy_asks_for(name: str) -> None:
    rule, known = build_policy(name, {}, 4).local_rule, facts(name, {}, 4)
    made = build(rule.name, rule.knobs, [3])
    assert known is not None and made.steps == known.batches and made.remembers == rule.remembers


def test_the_elastic_pull_of_all_workers_together_is_nine_tenths() -> None:
    assert build_policy("easgd", {}, 6).local_rule.knobs["alpha"] == pytest.approx(0.15)
    assert build_policy("easgd", {"alpha": 0.5}, 6).local_rule.knobs["alpha"] == 0.5


def test_the_asynchronous_one_takes_either_optimizer() -> None:
    knobs = {"steps": 3, "learning_rate": 0.5}
    assert build_policy("local-async", knobs, 2).local_rule.knobs == knobs
    rule = build_policy("local-async", {**knobs, "inner": "adamw"}, 2).local_rule
    assert rule.name == "local-adamw" and rule.knobs["learning_rate"] == 0.5 and rule.knobs["beta_2"] == 0.999


def test_a_rule_that_remembers_and_cancelling_are_refused_together() -> None:
    rule = LocalRule("dana-slim", {"momentum": 0.9}, remembers=True)
    with pytest.raises(PolicyError, match="a commit that a cancel crosses would be remembered"):
        Composition(WaitForUpdate(), Everyone(3, 1), DropStale(0), cancel=CancelStale(), local=rule)
