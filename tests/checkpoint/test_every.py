"""How often: read from text, or refused in a sentence."""

import pytest

from psserver.settings import Options, SettingsError, resolve
from pswire.config.checkpoints import Every, EveryError, parse_every
from pswire.config.experiment import ExperimentError, parse_experiment


@pytest.mark.parametrize(
    ("text", "every"),
    [("", Every()), ("1000v", Every(1000)), ("60s", Every(0, 60.0)), ("0.5s", Every(0, 0.5))],
)
def test_it_is_read(text: str, every: Every) -> None:
    assert parse_every(text) == every


@pytest.mark.parametrize(
    "text", ["0v", "0s", "1000", "v", "-1v", "1.5v", "60 s", "nan s", "1e3s", "٣v", "1m"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(EveryError, match='expected versions such as "1000v" or seconds such as "60s"'):
        parse_every(text)
    with pytest.raises(ExperimentError, match=r"run\.checkpoint_every"):
        parse_experiment({"run": {"checkpoint_every": text}}, "test")


def test_a_server_takes_none_yet() -> None:
    options = Options(ps_hosts="localhost:0", overrides=("run.checkpoint_every=60s",))
    with pytest.raises(SettingsError, match="servers take no checkpoints yet"):
        resolve(options, None)
