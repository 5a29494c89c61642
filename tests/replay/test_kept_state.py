"""What layers keep between batches is the same in a run and in its replay: warm-up and evaluations do not move it."""

import logging
from pathlib import Path

import keras
import pytest

from pslab.replay.run_folder import prove, replay_of
from psworker.backends.keras.variables import warn_of_lost
from tests.promises import promise
from tests.replay.simulated import simulate

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("name", "policy"),
    [("Averages", "async"), ("Recurrent", "sync"), ("Scattered", "sync")],
)
def test_a_run_is_recomputed(name: str, policy: str, tmp_path: Path) -> None:
    run = simulate(
        tmp_path / "run",
        policy,
        cluster={"servers": 2, "workers": 2},
        simulation={"problem": "job", "evaluate": 4},
        optimizer={"name": "momentum", "learning_rate": 0.005},
        job={
            "module": f"tests/replay/kept_state.py:{name}",
            "epochs": 2,
        },
    )
    replay = replay_of(run)
    found = replay.run()
    assert found.first is None, found.first
    assert found.agreed == found.computed == 2 * (5 + 6)
    assert prove(run, replay).holds


@promise("A step that draws from what replay cannot read is named when it starts.")
def test_what_cannot_be_captured_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ps-worker"):
        simulate(
            tmp_path / "run",
            "sync",
            cluster={"servers": 1, "workers": 1},
            simulation={"problem": "job"},
            job={"module": "tests/replay/kept_state.py:Unrepeatable"},
        )
    (found,) = [each for each in caplog.records if getattr(each, "event", "") == "not_repeatable"]
    assert found.fields["operations"] == ["PyFunc", "RandomStandardNormal", "tf.random.Generator"]  # type: ignore[attr-defined]


class Numbered(keras.layers.Layer):
    """Counts its batches in an integer variable, which stays with its worker."""

    def __init__(self) -> None:
        super().__init__(name="numbered")
        self.batches = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)
        self.dice = keras.random.SeedGenerator(3)

    def call(self, x: object) -> object:
        self.batches.assign_add(1)
        return x


@promise("A worker that goes on in a new process names the layers whose integer variables begin again.")
def test_integers_that_ended_with_their_process_are_named(caplog: pytest.LogCaptureFixture) -> None:
    scaled = keras.layers.Normalization()
    warn_of_lost(keras.Sequential([keras.Input((3,)), scaled, Numbered(), keras.layers.Dense(1)]))
    (found,) = [each for each in caplog.records if getattr(each, "event", "") == "state_lost"]
    assert found.fields["layers"] == ["numbered"]  # type: ignore[attr-defined]


def test_what_ended_with_its_process_is_named(caplog: pytest.LogCaptureFixture) -> None:
    recurrent = keras.layers.LSTM(3, stateful=True, name="lstm")
    model = keras.Sequential([keras.Input(batch_shape=(2, 3, 1)), recurrent, keras.layers.Dense(1)])
    warn_of_lost(model)
    (found,) = [each for each in caplog.records if getattr(each, "event", "") == "state_lost"]
    assert found.fields["layers"] == ["lstm"]  # type: ignore[attr-defined]
    caplog.clear()
    warn_of_lost(keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]))
    assert not caplog.records
