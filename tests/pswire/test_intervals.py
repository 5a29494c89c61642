"""Intervals: one spelling wherever a key or an option takes one, read from text or refused in a sentence."""

from pathlib import Path
from typing import Any

import pytest

from pslab.experiment import Experiment
from psserver.options import Options
from psserver.settings import SettingsError, resolve
from pswire.config.experiment import ExperimentError
from pswire.config.run_sections import CHANGES, EVALUATES, SAVES
from pswire.config.units import Interval, IntervalError, parse_interval
from tests.sentences import Recorder

KEYS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "run.checkpoint_every": (SAVES, {}),
    "job.evaluate_every": (EVALUATES, {"module": "a:B"}),
    "policy.then.0.after": (CHANGES, {"name": "async"}),
}


def document(key: str, text: str) -> dict[str, Any]:
    section, *inner, name = key.split(".")
    value: Any = {**KEYS[key][1], name: text}
    return {section: {"then": [value]} if inner else value}


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("1000 versions", Interval(1000, "versions")),
        ("1 version", Interval(1, "versions")),
        ("20versions", Interval(20, "versions")),
        ("2 epochs", Interval(2, "epochs")),
        ("1 epoch", Interval(1, "epochs")),
        ("60 s", Interval(60.0, "s")),
        ("0.5s", Interval(0.5, "s")),
    ],
)
def test_every_key_that_takes_the_unit_reads_it(text: str, interval: Interval) -> None:
    assert parse_interval(text, ("versions", "epochs", "s")) == interval
    for key, (units, _) in KEYS.items():
        if interval.unit in units:
            Experiment.parse(document(key, text), "test")
        else:
            with pytest.raises(ExperimentError, match=key):
                Experiment.parse(document(key, text), "test")


@pytest.mark.parametrize(
    "text",
    [
        *("0 versions", "0s", "25 %", "1000", "1000v", "versions", "-1 versions", "1.5 versions"),
        *("60  s", "nan s", "1e3s", "٣ versions", "1m", "1 hour", "30 sec", " 30 s", "5 e", "1 version\n"),
    ],
)
def test_anything_else_is_refused_by_every_key(text: str) -> None:
    with pytest.raises(IntervalError):
        parse_interval(text, SAVES)
    for key in KEYS:
        with pytest.raises(ExperimentError, match=key):
            Experiment.parse(document(key, text), "test")


@pytest.mark.parametrize("key", KEYS)
def test_the_sentence_gives_an_example_of_each_unit(key: str, sentences: Recorder) -> None:
    with sentences.raises(ExperimentError):
        Experiment.parse(document(key, "1000v"), "test")


def test_a_server_is_told(sentences: Recorder) -> None:
    options = Options(
        ps_hosts="localhost:0", out=Path("run"), overrides=("run.checkpoint_every=60 s", "run.keep=2")
    )
    settings = resolve(options, None)
    assert (settings.terms.checkpoint_versions, settings.terms.checkpoint_seconds, settings.keep) == (
        0,
        60.0,
        2,
    )
    assert resolve(Options(ps_hosts="localhost:0"), None).keep == 0
    with sentences.raises(SettingsError):
        resolve(Options(ps_hosts="localhost:0", resume="latest"), None)
