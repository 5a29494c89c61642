"""Where `distribute` finds its servers; and a server for scripts that run as processes of their own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pswire.addresses import AddressError
from psworker.connection import Connection

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
# Three interpreters load TensorFlow at once, on whatever machine this is.
PATIENCE = 240.0


@contextmanager
def server(*options: str) -> Iterator[str]:
    """The address of a ps-server whose optimizer is the job's. It ends by itself, with success."""
    command = [
        sys.executable,
        "-m",
        "psserver",
        "--ps-hosts",
        "127.0.0.1:0",
        "--json",
        "--optimizer",
        "from-job",
    ]
    with subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def resolved(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], hosts: str | None = None
) -> Connection:
    for name in ("PS_HOSTS", "PS_TASK_INDEX", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Connection.resolve(hosts)


CLUSTER = {"ps": ["p:1", "q:2"], "chief": ["c:3"], "worker": ["w:4", "w:5"]}


def tf_config(kind: str, index: int = 0) -> str:
    return json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    ("hosts", "environment", "expected"),
    [
        (None, {}, None),
        (None, {"PS_HOSTS": "", "TF_CONFIG": ""}, None),
        ("h:9", {"PS_HOSTS": "e:8", "TF_CONFIG": tf_config("chief")}, (["h:9"], None)),
        (None, {"PS_HOSTS": "e:8", "TF_CONFIG": tf_config("chief")}, (["e:8"], None)),
        (None, {"PS_HOSTS": "e:8,f:7", "PS_TASK_INDEX": "3"}, (["e:8", "f:7"], 3)),
        (None, {"TF_CONFIG": tf_config("chief"), "PS_TASK_INDEX": "7"}, (CLUSTER["ps"], 7)),
        (None, {"TF_CONFIG": tf_config("worker", 1)}, (CLUSTER["ps"], 2)),
    ],
)
def test_servers_are_where_the_caller_says_then_ps_hosts_then_tf_config(
    hosts: str | None,
    environment: dict[str, str],
    expected: tuple[list[str], int | None] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = resolved(monkeypatch, environment, hosts)
    assert (None if found.own else ([str(each) for each in found.hosts], found.task_index)) == expected


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"TF_CONFIG": tf_config("ps")}, "expected worker or chief, got ps"),
        ({"TF_CONFIG": tf_config("evaluator")}, '"evaluator" is not supported; a worker evaluates'),
        ({"TF_CONFIG": "{"}, "TF_CONFIG: expected JSON"),
        ({"PS_HOSTS": "e:8", "PS_TASK_INDEX": "x"}, "PS_TASK_INDEX: expected a number from 0, got 'x'"),
        ({"PS_HOSTS": "e:8", "PS_TASK_INDEX": "-1"}, "PS_TASK_INDEX: expected a number from 0, got '-1'"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused_with_a_sentence(
    environment: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AddressError, match=words):
        resolved(monkeypatch, environment)
