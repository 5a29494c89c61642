"""Settings for all tests: how often random tests repeat, which tests `--fast` leaves out, in which order files run.

Layout: tests/<area>/test_<what>.py; verbs that tests share live in the area's own modules.
"""

import gc
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

# Read when TensorFlow and Keras are first imported, here or in a child process.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
# Before numpy, too: threads of BLAS spin while they wait for each other, which takes minutes of busy cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell's background job ignores Ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests.forking.popen import forking, server_pids
from tests.patience import at_most
from tests.repetitions import EFFORT, SOAK, repetitions
from tests.sentences import NAME, Recorder, read, write

# No deadlines: two busy cores say nothing about the code. Examples are the same in every run on every machine; only a
# soak draws new ones. A test with settings of its own asks `repetitions` for its number of examples.
settings.register_profile(
    "paramserver",
    deadline=None,
    max_examples=repetitions(50, soak=2000, fast=20),
    derandomize=not SOAK,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("paramserver")

# Seconds of each test file in the last recorded run (scripts/test --record-durations).
DURATIONS = Path(__file__).with_name("durations.json")
KNOWN: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
# A file that is not in the table is taken for one of so many seconds.
UNKNOWN = 5.0
ROOT = Path(__file__).parents[1]
# Areas and files whose tests start commands as forks of a process that has loaded their modules.
FORKED = {
    *("chaos", "cluster", "dashboard", "exchange", "export", "keras", "lessons", "replay", "shm"),
    *(
        "docs/test_data_page.py",
        "docs/test_notebooks.py",
        "frameworks/test_backends.py",
        "lab/test_advise.py",
        "worker_tf/test_determinism.py",
        *(f"checkpoint/test_{name}.py" for name in ("foreign", "forged", "full_disk")),
        *(f"engines/test_{name}.py" for name in ("kept_runs", "kept_security", "own_files")),
        *("bench/test_child.py", "bench/test_swarm.py", "lab/test_local.py", "metrics/test_endpoint.py"),
        *("observe/test_watch.py", "service/test_between_servers.py", "service/test_cli.py"),
        "service/test_refused_commands.py",
        "worker/test_embedded.py",
    ),
    *(f"security/test_{name}.py" for name in ("exit_codes", "replicas", "secrets", "strangers", "training")),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate", action="store_true", help="write golden files anew instead of comparing with them"
    )
    parser.addoption(
        "--record-durations", action="store_true", help=f"write {DURATIONS.name}: seconds of each test file"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None):
        # Otherwise each process of a fresh clone would compile the same, at the same time.
        subprocess.run([sys.executable, "-m", "tests.kernels"], cwd=ROOT, check=True)
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationRecorder())


class DurationRecorder:
    """Adds up the seconds of each file's tests, in the process that collects their reports."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        table = {file: round(seconds, 1) for file, seconds in self._seconds.most_common() if seconds >= 0.05}
        DURATIONS.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long run first: two processes then end at about the same time. Within a file nothing moves."""
    items.sort(key=lambda item: -KNOWN.get(item.nodeid.partition("::")[0], UNKNOWN))


def pytest_collection_finish() -> None:
    """What thousands of tests, TensorFlow and Keras have made by now stays to the end: a collection of garbage, which
    `keras.utils.clear_session` asks for at each call, need not look through it again."""
    gc.collect()
    gc.freeze()


# Of a skipped test: what to type so that it runs.
_LACKING = re.compile(r"\(((?:scripts/install|apt-get install) [^()]+)\)$")

# A file whose tests all start processes or need TensorFlow, or that loads it.
_HEAVY = re.compile(
    r"^(pytestmark = .*mark\.(cluster|tensorflow)|(import|from) (tensorflow|keras))\b", re.MULTILINE
)


# `--fast` leaves out files that took longer than this, unless they ask `repetitions` how often to repeat.
LONG = 5.0  # seconds


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """`--fast` does not even import a file that is left out: loading TensorFlow takes longer than all that remains."""
    if EFFORT != "fast":
        return None
    file = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    if file.suffix != ".py" or not file.is_file():
        return None
    source = file.read_text(encoding="utf-8")
    long = KNOWN.get(file.relative_to(ROOT).as_posix(), 0.0) > LONG and "repetitions(" not in source
    return True if long or _HEAVY.search(source) else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """The last line before the counts says which tests were skipped, and what brings them.

    A reason that ends in "(COMMAND)" names what this machine lacks and how to get it.
    """
    yield
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    lacking, soak, other = Counter[str](), 0, 0
    for reason, count in reasons.items():
        found = _LACKING.search(reason)
        if found is not None:
            lacking[found[1]] += count
        elif reason.startswith("Skipped: in a soak"):
            soak += count
        else:
            other += count
    parts = [f"{count} for want of: {command}" for command, count in lacking.most_common()]
    parts += [f"{soak} that run in scripts/soak"] if soak else []
    parts += [f"{other} for the reasons above"] if other else []
    if parts:
        terminalreporter.write_line(f"test: skipped {reasons.total()} tests: {'; '.join(parts)}")


@pytest.fixture(autouse=True, scope="module")
def forks(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a module's fixtures and tests start, and what is started by that, where `FORKED` says so."""
    file = request.path.relative_to(Path(__file__).parent)
    with forking() if {file.parts[0], file.as_posix()} & FORKED else nullcontext():
        yield


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    """Real servers and workers that keep what they write below the test's folder."""
    from tests.cluster.cluster import Cluster

    with Cluster(tmp_path) as made:
        yield made


@pytest.fixture
def regenerate(request: pytest.FixtureRequest) -> bool:
    """Golden files are to be written."""
    return bool(request.config.getoption("--regenerate"))


# Whether the body of a test has skipped it.
SKIPPED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[SKIPPED] = report.skipped
    return report


@pytest.fixture
def sentences(request: pytest.FixtureRequest, regenerate: bool) -> Iterator[Recorder]:
    """What users read, held against the area's sentences.txt (tests/sentences.py)."""
    path = request.path.with_name(NAME)
    name = f"{request.path.name}::{request.node.nodeid.partition('::')[2]}"
    recorder = Recorder(None if regenerate else read(path).get(name, []))
    yield recorder
    if request.node.stash.get(SKIPPED, False):
        return
    if recorder.known is None:
        write(path, name, recorder.seen)
    elif not recorder.differs:
        left = recorder.known[len(recorder.seen) :]
        assert not left, f"{NAME} has more than the test says: {left}"


@pytest.fixture(autouse=True)
def no_determinism_left_behind() -> Iterator[None]:
    """A job that a test simulates makes TensorFlow deterministic for its process, which other tests share."""
    yield
    config = sys.modules.get("tensorflow.python.framework.config")
    if config is not None:
        config.disable_op_determinism()


@pytest.fixture(autouse=True)
def no_process_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test marked `cluster` ends all processes that it started. Those of wider fixtures are not its own."""
    if request.node.get_closest_marker("cluster") is None:
        yield
        return
    me = psutil.Process()
    before = set(me.children(recursive=True))
    yield
    # A browser of a wider fixture starts helpers whenever it likes.
    theirs = {
        child for process in before if process.is_running() for child in process.children(recursive=True)
    }
    started = (
        {child for child in me.children(recursive=True) if child.pid not in server_pids()} - before - theirs
    )
    limit = at_most(5.0)
    _, left = psutil.wait_procs(started, timeout=limit)
    names = [" ".join(process.cmdline()) for process in left if process.is_running()]
    for process in left:
        process.kill()
    assert not left, f"processes left behind {limit:g} s after the test: {names}"
