"""Problems of the user's own: the same run as the built-in one they imitate; what is no problem is refused at once."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from pslab.experiment import Experiment
from pslab.runs.folder import Run
from pslab.simulator import SimulationError, build
from pslab.simulator.problems import ProblemError, numpy_problem
from pswire.config.experiment import ExperimentError
from tests.promises import promise
from tests.replay.command import ps_lab
from tests.simulator.lab import experiment, simulate

RunLab = Callable[..., CompletedProcess[str]]
# A quadratic written anew.
OWN = '''
import numpy as np

from pslab.simulator.problems import Gradient
from pslab.simulator.problems.quadratic import Quadratic


class Bowl:
    def __init__(self, noise=0.0, dimensions=10):
        self.like = Quadratic(noise=noise, dimensions=dimensions)

    def initial(self):
        return self.like.initial()

    def batches(self, worker, workers, seed, epoch):
        return self.like.batches(worker, workers, seed, epoch)

    def gradient(self, parameters, batch):
        return self.like.gradient(parameters, batch)

    def evaluate(self, parameters):
        return self.like.evaluate(parameters)


class Later(Bowl):
    """Wrong from its 20th gradient on."""
    count = 0

    def gradient(self, parameters, batch):
        self.count += 1
        found = super().gradient(parameters, batch)
        return found if self.count < 20 else Gradient({"x": found.values["x"][:3]}, found.loss, found.samples)


bowl = 3
'''


def gradient(values: str, loss: str = "1.0", samples: int = 1) -> str:
    return f"def gradient(self, parameters, batch): return Gradient({values}, {loss}, {samples})"


# What a Bowl is wrong with.
WRONG = {
    "NoEvaluate": "evaluate = None",
    "NoArrays": "def initial(self): return {'x': [1.0, 2.0]}",
    "Whole": "def initial(self): return {'x': np.zeros(10, int)}",
    "Empty": "def initial(self): return {}",
    "NoBatches": "def batches(self, worker, workers, seed, epoch): return iter(())",
    "OtherShape": gradient("{'x': np.zeros(3, np.float32)}"),
    "OtherNames": gradient("{'y': np.zeros(10, np.float32)}"),
    "NoGradient": "def gradient(self, parameters, batch): return np.zeros(10, np.float32)",
    "NoSamples": gradient("{'x': np.zeros(10, np.float32)}", samples=0),
    "NotFinite": gradient("{'x': np.full(10, np.nan, np.float32)}"),
    "NotFiniteLoss": gradient("{'x': np.zeros(10, np.float32)}", "float('inf')"),
    "NoNumbers": "def evaluate(self, parameters): return {'accuracy': 'high'}",
    "Raises": "def gradient(self, parameters, batch): raise KeyError('x')",
    "RaisesAtOnce": "def __init__(self): raise OSError('no data')",
}
FILE = """
[run]
name = "own"
engine = "simulated"
versions = 50

[cluster]
workers = 3

[simulation]
problem = "{problem}"
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    wrong = (f"class {name}(Bowl):\n    {body}\n" for name, body in WRONG.items())
    (tmp_path / "bowls.py").write_text("\n\n".join([OWN, *wrong]))
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "bowls.py")


@promise("A problem of one's own gives the run of the equal built-in problem, to the bit.")
def test_a_copy_of_a_built_in_problem_gives_its_run(module: str) -> None:
    sections = {"run": {"versions": 40}, "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    options = {"noise": 0.3, "dimensions": 5}
    own, built_in = (
        simulate(experiment("async", **sections, simulation={"problem": problem, "options": options}))
        for problem in (f"{module}:Bowl", "quadratic")
    )
    assert own.lines == built_in.lines
    assert own.summary["metrics"] == built_in.summary["metrics"]
    assert own.summary["weights_sha256"] == built_in.summary["weights_sha256"]


@pytest.mark.parametrize("name", [*WRONG, "bowl", "Missing"])
def test_what_is_no_problem_is_refused_before_anything_runs(module: str, name: str, sentences) -> None:
    with pytest.raises(SimulationError) as refused:
        build(experiment(run={"versions": 1}, simulation={"problem": f"{module}:{name}"}))
    # Without the traceback of the user's code.
    sentences.check(str(refused.value).splitlines()[0])


@pytest.mark.parametrize(
    ("name", "options"), [("bowls_that_are_not:Bowl", {}), ("bowls.py:Bowl", {"noize": 1.0})]
)
def test_a_module_and_options_that_do_not_exist(module: str, name: str, options, sentences) -> None:
    with pytest.raises(ProblemError) as refused:
        numpy_problem(name, options)
    sentences.check(str(refused.value).partition("; looked in")[0])


def test_what_names_no_problem_is_refused_by_the_file(sentences) -> None:
    with pytest.raises(ExperimentError) as refused:
        Experiment.parse({"run": {"name": "x"}, "simulation": {"problem": "bowls:"}}, "x.toml")
    sentences.check(refused)


def test_an_accuracy_that_is_not_measured_cannot_end_a_run(module: str, sentences) -> None:
    simulation = {"problem": f"{module}:Bowl", "evaluate": 1, "until_accuracy": 0.5}
    with pytest.raises(SimulationError) as refused:
        build(experiment(run={"versions": 1}, simulation=simulation))
    sentences.check(refused)


def test_a_run_is_marked_as_own_code_and_replayed_to_the_bit(module: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(FILE.format(problem=f"{module}:Bowl"))
    done = ps_lab("run", file, "--out", tmp_path / "run")
    assert done.code == 0 and "your own code" in done.err
    assert Run(tmp_path / "run").experiment.own_code == {"simulation.problem": f"{module}:Bowl"}
    replayed = ps_lab("replay", tmp_path / "run", "--json")
    assert replayed.code == 0 and replayed.lines[-1]["equal"] is True


def test_a_gradient_that_becomes_wrong_later_ends_the_run_as_the_jobs_own_failure(
    module: str, tmp_path: Path, sentences
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(FILE.format(problem=f"{module}:Later"))
    done = ps_lab("run", file, "--out", tmp_path / "run")
    assert done.code == 6
    sentences.check(done.err.splitlines()[-1])
