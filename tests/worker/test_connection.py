"""One reading of arguments and environment for every entry: what makes no sense is refused before anything starts."""

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psworker.connection import Connection, OwnServer, Where
from tests.links import connect_link
from tests.sentences import Recorder

HOSTS = "127.0.0.1:7070,127.0.0.1:7071"
TWO = {"hosts": HOSTS}


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "HOSTS",
        "TASK_INDEX",
        "WIRE_DTYPE",
        "TRANSPORT",
        "REPLICAS",
        "TLS_CA",
        "TLS_CERT",
        "TLS_KEY",
    ):
        monkeypatch.delenv(f"PS_{name}", raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)


@pytest.mark.parametrize(
    ("given", "environment"),
    [
        ({**TWO, "wire_type": "int8"}, {}),
        ({**TWO, "wire_dtype": "int7"}, {}),
        (TWO, {"PS_WIRE_DTYPE": "int7"}),
        ({**TWO, "transport": "carrier pigeon"}, {}),
        (TWO, {"PS_TRANSPORT": "carrier pigeon"}),
        ({**TWO, "transport": "shared-memory", "wire_dtype": "int8"}, {}),
        ({**TWO, "server_timeout": -1.0}, {}),
        ({**TWO, "task_index": -1}, {}),
        (TWO, {"PS_TASK_INDEX": "first"}),
        ({**TWO, "replicas": 3}, {}),
        (TWO, {"PS_REPLICAS": "3"}),
        ({**TWO, "policy": "async"}, {}),
        ({**TWO, "seed": 0}, {}),
        ({**TWO, "tls_ca": "ca.pem"}, {}),
        ({"hosts": "7070"}, {}),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(
    given: dict[str, Any],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    sentences: Recorder,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((ValueError, TypeError)) as refused:
        Connection.resolve(**given)
    sentences.check(refused)
    with pytest.raises(type(refused.value)) as again:
        connect_link(variables={"w": np.zeros(1, np.float32)}, **given)
    assert str(again.value) == str(refused.value)


def test_an_argument_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PS_HOSTS": "127.0.0.1:1",
        "PS_TASK_INDEX": "3",
        "PS_WIRE_DTYPE": "bfloat16",
        "PS_TRANSPORT": "grpc",
        "PS_REPLICAS": "2",
    }.items():
        monkeypatch.setenv(name, value)
    told = Connection.resolve()
    assert (told.task_index, told.wire_dtype, told.transport, told.replicas) == (3, "bfloat16", "grpc", True)
    own = Connection.resolve(HOSTS, task_index=0, wire_dtype="float16", transport="socket", replicas=1)
    assert [each.port for each in own.hosts] == [7070, 7071] and own.parts == 2
    assert (own.task_index, own.wire_dtype, own.transport, own.replicas) == (0, "float16", "socket", False)


CLUSTER = {"ps": ["p:1", "q:2"], "chief": ["c:3"], "worker": ["w:4", "w:5"]}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PS_HOSTS": "", "TF_CONFIG": ""}, None),
        ({"PS_HOSTS": "e:8", "TF_CONFIG": "chief"}, (["e:8"], None)),
        ({"TF_CONFIG": "chief", "PS_TASK_INDEX": "7"}, (CLUSTER["ps"], 7)),
        ({"TF_CONFIG": "worker"}, (CLUSTER["ps"], 2)),
    ],
)
def test_servers_are_where_ps_hosts_says_then_tf_config(
    environment: dict[str, str],
    expected: tuple[list[str], int | None] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        task = {"type": value, "index": int(value == "worker")}
        text = json.dumps({"cluster": CLUSTER, "task": task}) if name == "TF_CONFIG" and value else value
        monkeypatch.setenv(name, text)
    found = Connection.resolve()
    assert (None if found.own else ([str(each) for each in found.hosts], found.task_index)) == expected


def test_without_servers_one_is_started_as_the_caller_says(tmp_path: Path) -> None:
    found = Connection.resolve(policy="async", seed=3, out=tmp_path)
    assert found.own == OwnServer("async", 3, tmp_path) and (found.hosts, found.parts) == ((), 1)


def test_every_field_of_a_connection_can_be_given() -> None:
    fields = set(inspect.signature(Connection).parameters) - {"hosts", "own"}
    assert fields | {"tls_ca", "tls_cert", "tls_key"} | set(OwnServer._fields) == set(Where.__annotations__)
