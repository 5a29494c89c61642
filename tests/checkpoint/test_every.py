"""How often: read from text, or refused in a sentence."""

from pathlib import Path

import pytest

from psserver.options import Options
from psserver.settings import SettingsError, resolve
from pswire.config.experiment import ExperimentError, parse_experiment
from pswire.config.units import Every, EveryError, parse_every
from tests.sentences import Recorder


@pytest.mark.parametrize(
    ("text", "every"),
    [("", Every()), ("1000v", Every(1000)), ("60s", Every(0, 60.0)), ("0.5s", Every(0, 0.5))],
)
def test_it_is_read(text: str, every: Every) -> None:
    assert parse_every(text) == every


@pytest.mark.parametrize(
    "text", ["0v", "0s", "1000", "v", "-1v", "1.5v", "60 s", "nan s", "1e3s", "٣v", "1m"]
)
def test_anything_else_is_refused(text: str, sentences: Recorder) -> None:
    with sentences.raises(EveryError):
        parse_every(text)
    with pytest.raises(ExperimentError, match=r"run\.checkpoint_every"):
        parse_experiment({"run": {"checkpoint_every": text}}, "test")


def test_a_server_is_told(sentences: Recorder) -> None:
    options = Options(
        ps_hosts="localhost:0", out=Path("run"), overrides=("run.checkpoint_every=60s", "run.keep=2")
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
