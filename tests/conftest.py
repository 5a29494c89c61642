"""Settings for all tests.

Layout: tests/<area>/test_<what>.py; verbs that tests share live in the area's own modules.
"""

import os
from collections.abc import Iterator

# Read when TensorFlow and Keras are first imported, here or in a child process.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import psutil
import pytest
from hypothesis import HealthCheck, settings

# No deadlines: two busy cores say nothing about the code. On CI the examples are always the same ones.
settings.register_profile("local", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate", action="store_true", help="write golden traces anew instead of comparing with them"
    )


@pytest.fixture
def regenerate(request: pytest.FixtureRequest) -> bool:
    """Golden files are to be written."""
    return bool(request.config.getoption("--regenerate"))


ORPHANS_TIMEOUT = 5.0  # seconds


@pytest.fixture(autouse=True)
def no_process_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test marked `cluster` ends all processes that it started. Those of wider fixtures are not its own."""
    if request.node.get_closest_marker("cluster") is None:
        yield
        return
    me = psutil.Process()
    before = set(me.children(recursive=True))
    yield
    _, left = psutil.wait_procs(set(me.children(recursive=True)) - before, timeout=ORPHANS_TIMEOUT)
    names = [" ".join(process.cmdline()) for process in left if process.is_running()]
    for process in left:
        process.kill()
    assert not left, f"processes left behind {ORPHANS_TIMEOUT:g} s after the test: {names}"
