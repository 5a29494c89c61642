"""Configurations: refused in words, resolved completely, read back as they were."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psserver.optimizers import OptimizerError, build, describe, describe_schedule, names, schedule_names
from psserver.optimizers.optimizer import NOT_KERAS

positive = st.floats(1e-6, 10.0)
fraction = st.floats(0.0, 0.999)
steps = st.integers(1, 10**6)


@st.composite
def piecewise(draw: st.DrawFn) -> dict[str, Any]:
    boundaries = sorted(draw(st.sets(st.integers(0, 10**6), min_size=1, max_size=4)))
    count = len(boundaries) + 1
    values = draw(st.lists(positive, min_size=count, max_size=count))
    return {"schedule": "piecewise", "boundaries": boundaries, "values": values}


schedules = st.one_of(
    positive,
    st.integers(0, 3),
    piecewise(),
    st.fixed_dictionaries(
        {
            "schedule": st.just("exponential"),
            "initial_learning_rate": positive,
            "decay_steps": steps,
            "decay_rate": st.floats(0.01, 1.0),
        },
        optional={"staircase": st.booleans()},
    ),
    st.fixed_dictionaries(
        {"schedule": st.just("cosine"), "initial_learning_rate": positive, "decay_steps": steps},
        optional={"alpha": fraction},
    ),
    st.fixed_dictionaries(
        {
            "schedule": st.just("cosine"),
            "initial_learning_rate": positive,
            "decay_steps": steps,
            "warmup_steps": steps,
            "warmup_target": positive,
        }
    ),
)


CLIPPING = {"clipvalue", "clipnorm", "global_clipnorm"}


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Any optimizer, any subset of its knobs, any schedule."""
    name = draw(st.sampled_from(names()))
    config: dict[str, Any] = {"name": name}
    if draw(st.booleans()):
        config["learning_rate"] = draw(schedules)
    for knob in describe(name).knobs[1:]:
        if draw(st.booleans()):
            values = {"flag": st.booleans(), "integer": st.integers(1, 9), "words": st.just(["dense/*"])}
            # An exponent that must not be positive.
            below = knob.domain.at_most is not None and knob.domain.at_most <= 0
            numbers = st.floats(-0.999, -1e-6) if below else st.floats(1e-6, 0.999)
            config[knob.name] = draw(values.get(knob.domain.kind, numbers))
    # One kind of clipping at most.
    for name in CLIPPING - {draw(st.sampled_from(sorted(CLIPPING)))}:
        config.pop(name, None)
    return config


@given(configurations())
def test_a_resolved_configuration_reads_back_as_itself(config: dict[str, Any]) -> None:
    """Through JSON, as it travels to the shards and into the decision log."""
    optimizer = build(config)
    again = build(json.loads(json.dumps(optimizer.config)))
    assert again == optimizer
    assert again.config == optimizer.config
    known = {knob.name for knob in describe(optimizer.name).knobs}
    # An empty list, no clipping and Keras' formula are left out: configurations of earlier releases have none.
    optional = {"exclude_from_weight_decay", *CLIPPING, *NOT_KERAS}
    assert known - optional == set(optimizer.config) - optional - {"name"}
    said = {**NOT_KERAS, **optimizer.config}
    assert all(said[key] == value for key, value in config.items() if key != "learning_rate")


@given(configurations(), st.integers(0, 2**31))
def test_every_rate_is_finite_and_not_negative(config: dict[str, Any], version: int) -> None:
    assert 0 <= build(config).rate(version) < float("inf")


def test_a_configuration_cannot_be_changed_through_an_optimizer() -> None:
    optimizer = build(
        {"name": "sgd", "learning_rate": {"schedule": "piecewise", "boundaries": [1], "values": [1, 2]}}
    )
    optimizer.config["learning_rate"]["values"].append(3)  # type: ignore[index]
    assert optimizer.config["learning_rate"]["values"] == [1.0, 2.0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "name is missing; give one of sgd, momentum"),
        ({"name": "adm"}, "unknown optimizer 'adm'; did you mean \"adam\""),
        ({"name": "zzz"}, "unknown optimizer 'zzz'; known: sgd"),
        ({"name": ["sgd"]}, r"unknown optimizer \['sgd'\]"),
        ({"name": "adam", "beta1": 0.9}, "has no knob 'beta1'; did you mean \"beta_1\""),
        ({"name": "adam", "learningrate": 0.9}, 'did you mean "learning_rate"'),
        (
            {"name": "sgd", "momentum": 0.9},
            "'momentum' is a knob of momentum, nesterov, delayed-nesterov, rmsprop",
        ),
        ({"name": "adam", "beta_1": 1.0}, "beta_1 must be a number >= 0 and < 1, got 1.0"),
        ({"name": "adam", "beta_1": 0.99999999}, r"< 1, got 0.99999999 \(which is 1 in float32\)"),
        ({"name": "adam", "epsilon": 1e-60}, r"epsilon must be a number > 0, got 1e-60 \(which is 0 in"),
        ({"name": "adam", "epsilon": 0}, "epsilon must be a number > 0, got 0"),
        ({"name": "adam", "amsgrad": 1}, "amsgrad must be true or false, got 1"),
        ({"name": "sgd", "learning_rate": -0.1}, "learning_rate must be a number >= 0, got -0.1"),
        ({"name": "sgd", "learning_rate": "0.1"}, "learning_rate must be a number >= 0, got '0.1'"),
        ({"name": "sgd", "learning_rate": True}, "learning_rate must be a number >= 0, got True"),
        ({"name": "sgd", "learning_rate": None}, "learning_rate must be a number >= 0, got None"),
        ({"name": "sgd", "learning_rate": float("nan")}, "got nan"),
        ({"name": "sgd", "learning_rate": float("inf")}, "got inf"),
        ({"name": "sgd", "learning_rate": 10**400}, "learning_rate must be a number >= 0, got 1000"),
        ({"name": "sgd", "learning_rate": 1e39}, "learning_rate must be a number >= 0, got 1e"),
        ({"name": "momentum", "momentum": 1.1}, "momentum must be a number from 0 to 1, got 1.1"),
    ],
)
def test_bad_configurations_are_refused_in_words(config: dict[str, object], message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        build(config)


def test_every_optimizer_and_schedule_describes_itself() -> None:
    texts = [str(describe(name)) for name in names()] + [str(describe_schedule(s)) for s in schedule_names()]
    assert "beta_1: decay of the running mean of gradients; a number >= 0 and < 1 (default 0.9)" in texts[5]
    assert all(len(line) < 140 for text in texts for line in text.splitlines())
    with pytest.raises(OptimizerError, match='did you mean "adagrad"'):
        describe("adagrd")
    with pytest.raises(OptimizerError, match='did you mean "cosine"'):
        describe_schedule("cosines")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"name": "sgd", "clipnorm": 1.0, "clipvalue": 1.0}, "at most one kind .* clipvalue and clipnorm"),
        ({"name": "sgd", "clipnorm": -1.0}, "clipnorm must be a number >= 0"),
    ],
)
def test_clipping_that_cannot_be_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(OptimizerError, match=words):
        build(config)
    assert build({"name": "sgd", "clipnorm": 0}) == build({"name": "sgd"})


def test_a_knob_of_pytorchs_formulas_is_named_only_where_it_is_set() -> None:
    """Checkpoints and logs of before have no names for them, and go on."""
    usual = {"name": "momentum", "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.0}
    assert build({"name": "momentum", "rate_outside": False}).config == usual
    other = build({"name": "momentum", "rate_outside": True})
    assert other.config == {**usual, "rate_outside": True} and build(other.config) == other
