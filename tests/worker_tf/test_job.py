"""A job is found, or one message says what is wrong with it. No TensorFlow is needed for that."""

import re
import subprocess
import sys

import pytest

from psworker.job import Job, JobError, load_job

GOOD = """
from psworker.job import Job

class Digits(Job):
    hidden: int = 64
    rate: float = 0.5
    layers: tuple = (1, 2)
    name: str = "a"
    deep: bool = False
    loss = "mse"
    plain = 3          # not annotated: no option
    _secret: int = 1   # private: no option

    def model(self): return []
    def dataset(self, worker_index, worker_count, seed): return []

ready = Digits(hidden=8)

def factory(hidden=1): return Digits(hidden=hidden * 2)
def wrong(): return 3
number = 5
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """written(name, text): put a module into the current directory, a new one for every test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    yield write
    for name in set(sys.modules) - known:
        del sys.modules[name]


def refused(target, options=None):
    with pytest.raises(JobError) as caught:
        load_job(target, options)
    return caught.value


@pytest.mark.parametrize("target", ["good_a:{}", "good_a.py:{}", "./good_a.py:{}"])
def test_class_instance_and_factory(written, target):
    written("good_a.py", GOOD)
    assert load_job(target.format("Digits"), {"hidden": 7}).hidden == 7
    assert load_job(target.format("ready")).hidden == 8
    assert load_job(target.format("ready"), {"rate": 1}).options == {
        "hidden": 8,
        "rate": 1.0,
        "layers": (1, 2),
        "name": "a",
        "deep": False,
    }
    assert load_job(target.format("factory"), {"hidden": 4}).hidden == 8


def test_a_file_may_import_its_neighbours(written):
    written("jobs/neighbour_b.py", "SIZE = 9\n")
    written("jobs/good_b.py", GOOD.replace("64", "SIZE").replace("\n", "\nfrom neighbour_b import SIZE\n", 1))
    assert load_job("jobs/good_b.py:Digits").hidden == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hiden": 1}, "no option 'hiden'; did you mean \"hidden\""),
        ({"plain": 1}, "no option 'plain'"),
        ({"hidden": 1.5}, "'hidden' of job Digits: expected int, got float 1.5"),
        ({"hidden": True}, "expected int, got bool True"),
        ({"deep": 1}, "expected bool, got int 1"),
        ({"name": 1}, "expected str"),
    ],
)
def test_options_that_do_not_fit(written, options, words):
    written("good_c.py", GOOD)
    assert words in str(refused("good_c:Digits", options))
    assert load_job("good_c:Digits", {"layers": [3]}).layers == (3,)


def test_a_factory_names_its_options(written):
    written("good_d.py", GOOD)
    assert "no option 'hide'; did you mean \"hidden\"" in str(refused("good_d:factory", {"hide": 1}))


def test_an_option_without_a_default_must_be_given():
    class Needy(Job):
        size: int
        loss = "mse"

        def model(self): ...

        def dataset(self, worker_index, worker_count, seed): ...

    with pytest.raises(JobError, match="needs the option 'size'"):
        Needy()
    job = Needy(size=3)
    job.configure()
    assert job.options == {"size": 3}


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("good_e", "'package.module:attribute' or 'path/to/file.py:attribute', got 'good_e'"),
        (":job", "got ':job'"),
        ("good_e:", "got 'good_e:'"),
        ("goood_e:Digits", "no module 'goood_e'.*did you mean \"good_e\""),
        ("nowhere.py:Digits", "no job file 'nowhere.py'"),
        ("good_e:Digit", "no attribute 'Digit'; did you mean \"Digits\".*jobs in it: Digits, ready"),
        ("good_e:number", "must be a psworker.Job.*got int"),
        ("good_e:wrong", "must be a psworker.Job.*got int"),
        ("broken_e:job", "importing the job module 'broken_e' raised ZeroDivisionError"),
        ("broken_e.py:job", "importing the job module 'broken_e.py' raised ZeroDivisionError"),
        ("needs_e:job", "importing the job module 'needs_e' raised ModuleNotFoundError.*'not_installed'"),
        ("syntax_e:job", "raised SyntaxError"),
        ("half_e:Half", r"class Half must define dataset\(self, worker_index, worker_count, seed\); loss"),
    ],
)
def test_every_way_to_be_wrong_has_its_own_words(written, target, words):
    written("good_e.py", GOOD)
    written("broken_e.py", "def fail():\n    return 1 / 0\n\nfail()\n")
    written("needs_e.py", "import not_installed\n")
    written("syntax_e.py", "def :\n")
    written("half_e.py", "from psworker.job import Job\nclass Half(Job):\n    def model(self): ...\n")
    error = refused(target)
    assert re.search(words, str(error)), str(error)


def test_the_traceback_shows_the_users_lines_only(written):
    written("broken_f.py", "def fail():\n    return 1 / 0\n\nfail()\n")
    details = refused("broken_f:job").details
    assert "line 4, in <module>" in details and "line 2, in fail" in details
    assert "psworker" not in details and "importlib" not in details


def test_a_constructor_that_raises_is_the_jobs_fault(written):
    written("good_g.py", GOOD + "\nclass Bad(Digits):\n    def __init__(self): self.x = {}['key']\n")
    error = refused("good_g:Bad")
    assert "making job 'good_g:Bad' raised KeyError" in str(error) and "self.x" in error.details


def test_loading_a_job_loads_no_tensorflow():
    code = "import sys, psworker.job; sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=240).returncode == 0
