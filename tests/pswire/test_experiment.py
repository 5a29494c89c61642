"""Experiment files: defaults, overrides, exact round trips, and one clear message for all that is wrong."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslab.experiment import Experiment
from pswire.config.experiment import ExperimentError
from pswire.config.toml import parse_value, toml_text
from tests.sentences import Recorder

FULL = """
[run]
name = "digits"
seed = 7
versions = 100
deterministic = false
[cluster]
servers = 2
workers = 3
worker_timeout = 5
wire_dtype = "bfloat16"
[policy]
name = "bounded"
aggregate = 2
on_stale = "drop"
[optimizer]
name = "adam"
beta_1 = 0.8
learning_rate = {schedule = "cosine", decay_steps = 1000}
[job]
module = "examples/digits.py:job"
epochs = 3
[job.options]
hidden = [64, 32]
uneven = true
[workers.0]
device = "gpu:1"
[workers.2]
device = "cpu"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(text: str, folder: Path, overrides: tuple[str, ...] = ()) -> str:
    with pytest.raises(ExperimentError) as caught:
        Experiment.load(write(folder, text), overrides)
    return str(caught.value)


def test_everything_that_a_file_says_is_there(tmp_path: Path) -> None:
    experiment = Experiment.load(write(tmp_path, FULL))
    assert (experiment.run.name, experiment.run.seed, experiment.run.versions) == ("digits", 7, 100)
    assert experiment.run.deterministic is False
    assert (experiment.cluster.servers, experiment.cluster.workers) == (2, 3)
    assert experiment.cluster.worker_timeout == 5.0 and isinstance(experiment.cluster.worker_timeout, float)
    assert experiment.policy.name == "bounded"
    assert experiment.policy.knobs == {"aggregate": 2, "on_stale": "drop"}
    schedule = {"schedule": "cosine", "decay_steps": 1000}
    assert experiment.optimizer.config == {"name": "adam", "learning_rate": schedule, "beta_1": 0.8}
    assert experiment.job.module == "examples/digits.py:job" and experiment.job.epochs == 3
    assert experiment.job.options == {"hidden": [64, 32], "uneven": True}
    assert {number: worker.device for number, worker in experiment.workers.items()} == {0: "gpu:1", 2: "cpu"}


def test_defaults(tmp_path: Path) -> None:
    experiment = Experiment.load(write(tmp_path, ""))
    assert experiment == Experiment()
    assert (experiment.run.seed, experiment.run.versions, experiment.run.deterministic) == (0, 0, False)
    assert experiment.cluster.model_dump() == {
        "servers": 1,
        "workers": 1,
        "worker_timeout": 10.0,
        "idle_timeout": 600.0,
        "ticket_timeout": "auto",
        "recover_timeout": "auto",
        "nonfinite_limit": 10,
        "replicas": 1,
        "wire_dtype": "float32",
        "transport": "auto",
        "prefetch": False,
        "allow_missing": False,
        "min_workers": 0,
        "max_workers": 0,
        "allowed_workers": [],
        "metrics": False,
        "hosts": [],
        "place": {
            "servers": {"cpus": 0, "memory": "", "spread": False},
            "workers": {"cpus": 0, "gpus": 0},
            "place_timeout": 60.0,
        },
    }
    assert (experiment.policy.name, experiment.policy.knobs) == ("sync", {})
    assert experiment.optimizer.config == {"name": "sgd", "learning_rate": 0.01}
    assert (experiment.job.module, experiment.job.epochs, experiment.job.options) == ("", 1, {})


def test_resolved_text_reads_back_equal(tmp_path: Path) -> None:
    for text in (FULL, "", "[job]\nepochs = 2"):
        experiment = Experiment.load(write(tmp_path, text))
        resolved = experiment.to_toml()
        assert Experiment.load(write(tmp_path, resolved)) == experiment
        assert Experiment.load(write(tmp_path, resolved)).to_toml() == resolved


VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
    | st.datetimes()
    | st.dates()
    | st.times(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), VALUES, max_size=4))
def test_any_options_survive_the_file(options: dict[str, Any]) -> None:
    import tomllib

    experiment = Experiment.parse({"job": {"module": "a:b", "options": options}})
    assert Experiment.parse(tomllib.loads(experiment.to_toml())) == experiment


def test_overrides_are_toml_or_bare_words(tmp_path: Path) -> None:
    experiment = Experiment.load(
        write(tmp_path, FULL),
        [
            "policy.max_staleness=2",
            "policy.on_stale = block",
            'run.name="a b"',
            "optimizer.learning_rate={schedule = 'constant', value = 0.1}",
            "optimizer.learning_rate.value=0.2",
            "job.options.hidden=[16]",
            "workers.1.device=gpu:0",
            "run.deterministic=true",
            "job.options.note=a=b",
        ],
    )
    assert experiment.policy.knobs == {"aggregate": 2, "on_stale": "block", "max_staleness": 2}
    assert (experiment.run.name, experiment.run.deterministic) == ("a b", True)
    assert experiment.optimizer.learning_rate == {"schedule": "constant", "value": 0.2}
    assert experiment.job.options == {"hidden": [16], "uneven": True, "note": "a=b"}
    assert experiment.workers[1].device == "gpu:0"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("2.5", 2.5),
        ("1e-3", 1e-3),
        ("true", True),
        ("adam", "adam"),
        ("", ""),
        ('"2"', "2"),
        ("2024-01-01", "2024-01-01"),
        ("1\nb = 2", "1\nb = 2"),
        ("examples/digits.py:job", "examples/digits.py:job"),
    ],
)
def test_values_on_the_command_line(text: str, value: object) -> None:
    assert parse_value(text) == value and type(parse_value(text)) is type(value)


@pytest.mark.parametrize("override", ["seed=3", "run.seed", "=3", "run.=3", ".seed=3", "run..seed=3"])
def test_what_is_no_override_is_refused(tmp_path: Path, override: str) -> None:
    assert f"expected section.key=value, for example policy.slack=2, got {override!r}" in problems(
        "", tmp_path, (override,)
    )


def test_an_override_through_a_number_is_refused(tmp_path: Path) -> None:
    assert "run.seed is no table, it is 3" in problems("[run]\nseed = 3", tmp_path, ("run.seed.x=1",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[clutser]", '[clutser]: unknown section; did you mean "cluster"?'),
        ("seed = 3", "[seed]: unknown section; did you mean run.seed?"),
        ("[run]\nsede = 1", 'run.sede: unknown key; did you mean "seed"?'),
        ("[run]\nworkers = 3", "run.workers: unknown key; did you mean cluster.workers?"),
        (
            "[cluster]\nzzz = 1",
            "cluster.zzz: unknown key; known: servers, workers, worker_timeout, idle_timeout",
        ),
        ("[workers.0]\ndevcie = 'cpu'", 'workers.0.devcie: unknown key; did you mean "device"?'),
        (
            "[run]\nseed = 'x'",
            'run.seed: expected a whole number from 0 to 9223372036854775807, got the string "x"',
        ),
        ("[run]\nseed = -1", "run.seed: expected a whole number from 0 to 9223372036854775807, got -1"),
        ("[run]\ndeterministic = 1", "run.deterministic: expected true or false, got 1"),
        ("run = 3", "run: expected a table, got 3"),
        ("[cluster]\nworkers = 0", "cluster.workers: expected a whole number from 1 to 65536, got 0"),
        (
            "[cluster]\nworker_timeout = 0",
            "cluster.worker_timeout: expected a number above 0 and at most 1000000, got 0",
        ),
        (
            "[cluster]\nworker_timeout = inf",
            "cluster.worker_timeout: expected a number above 0 and at most 1000000, got inf",
        ),
        ("[cluster]\nwire_dtype = 'int9'", "cluster.wire_dtype: unknown wire dtype 'int9'"),
        (
            "[optimizer]\nlearning_rate = 'x'",
            "optimizer.learning_rate: expected a number or a table with a schedule",
        ),
        ("[job]\npatience = 2", "job.module: missing; expected package.module:attribute"),
        (
            "[job]\nmodule = 'digits'",
            "job.module: expected package.module:attribute or path/file.py:attribute",
        ),
        ("[job]\nmodule = 'a:b'\nepochs = 0", "job.epochs: expected a whole number from 1 to 1048576, got 0"),
        (
            "[cluster]\nworkers = 2\nmin_workers = 3",
            "cluster.min_workers: expected at most cluster.workers, which is 2, got 3",
        ),
        (
            "[cluster]\nworkers = 3\nmax_workers = 2",
            "cluster.max_workers: expected room for the 3 workers that the start waits for, got 2",
        ),
        (
            "[cluster]\nworkers = 3\nmin_workers = 2\nallowed_workers = ['w0']",
            "cluster.allowed_workers: expected room for the 2 workers that the start waits for, got 1",
        ),
        ("[workers.1]", "workers.1: expected a number below cluster.workers, which is 1"),
        ("[workers.first]", "workers.first: expected a worker's number, such as [workers.0]"),
        (
            "[workers.0]\ndevice = 'tpu'",
            'workers.0.device: expected auto, cpu or gpu:N, got the string "tpu"',
        ),
        ("[run\nseed = 1", "expected TOML: "),
        ("a = " + "[" * 20000, "expected TOML: "),
        # What would become a folder elsewhere, or take for ever.
        (
            "[run]\nname = '../../x'",
            "run.name: expected at most 100 printable characters, without /",
        ),
        ('[run]\nname = "a\\u0000"', "run.name: expected at most 100 printable characters"),
        ("[run]\nname = '..'", "and no . at the beginning"),
        ("[run]\nseed = " + "9" * 5000, "expected TOML: "),
        (".".join(["a"] * 100_000) + " = 1", "expected TOML: expected keys of at most 40 parts"),
        ("[links]\nlatency = 1e308", "links.latency: expected"),
        ("[links]\nbandwidth = 1e-300", "links.bandwidth: expected 0 (no limit), or at least 1 byte/s"),
    ],
)
def test_one_problem_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    message = problems(text, tmp_path)
    assert (
        message.startswith(f"{tmp_path / 'experiment.toml'}: ") and words in message and "\n" not in message
    )


def test_all_problems_are_told_at_once(tmp_path: Path, sentences: Recorder) -> None:
    message = problems(
        "[run]\nsede = 1\nversions = 'ten'\n[cluster]\nworkers = 0\n[polcy]\nname = 'sync'", tmp_path
    )
    sentences.check(*message.splitlines())


def test_files_that_cannot_be_read(tmp_path: Path, sentences: Recorder) -> None:
    with pytest.raises(ExperimentError) as refused:
        Experiment.load(tmp_path / "nowhere.toml")
    sentences.check(refused)
    with pytest.raises(ExperimentError) as refused:
        Experiment.load(tmp_path)
    sentences.check(refused)
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"[run]\nname = '\xe9'")
    with pytest.raises(ExperimentError) as refused:
        Experiment.load(latin)
    sentences.check(refused)


def test_toml_of_what_toml_has_not() -> None:
    with pytest.raises(TypeError, match="got None"):
        toml_text({"run": {"seed": None}})
    assert toml_text({"a": {"b c": datetime.date(2024, 1, 2)}}) == '[a]\n"b c" = 2024-01-02\n'


@pytest.mark.parametrize(
    ("sections", "weight"),
    [
        ({"job": {"script": "train.py"}}, "samples"),
        ({"optimizer": {"name": "from-job"}}, "samples"),
        ({"optimizer": {"name": "from-job"}, "policy": {"weight": "equal"}}, "equal"),
        ({"optimizer": {"name": "from-job"}, "policy": {"name": "async"}}, None),
        ({"optimizer": {"name": "sgd"}}, None),
    ],
)
def test_the_mean_of_fit_is_over_samples(sections: dict[str, Any], weight: str | None) -> None:
    assert Experiment.model_validate(sections).policy.knobs.get("weight") == weight
