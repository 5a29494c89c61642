"""Addresses and TF_CONFIG: what is read, and that every refusal names its part."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pswire.addresses import Address, AddressError, cluster_from_tf_config, parse_hosts


def test_hosts() -> None:
    assert parse_hosts("h0:7070, h-1.example.org:7071 ,[::1]:0") == (
        Address("h0", 7070),
        Address("h-1.example.org", 7071),
        Address("::1", 0),
    )
    assert [str(address) for address in parse_hosts("h0:7070,[fe80::1%eth0]:1")] == [
        "h0:7070",
        "[fe80::1%eth0]:1",
    ]
    assert len(parse_hosts("127.0.0.1:0,127.0.0.1:0")) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected addresses such as h0:7070,h1:7070, got nothing"),
        ("h0", "expected host:port, got 'h0'"),
        ("h0:", "expected a port from 0 to 65535 after the last colon, got ''"),
        ("h0:seven", "got 'seven' in 'h0:seven'"),
        ("h0:65536", "got '65536'"),
        ("h0:-1", "got '-1'"),
        ("h0:٣", "expected a port"),
        (":7070", "expected host:port, got ':7070'"),
        ("::1:7070", r"write an IPv6 address in brackets: \[::1\]:7070"),
        ("[h0]:7070", "expected host:port"),
        ("http://h0:7070", "expected host:port"),
        ("h0:1,,h1:1", "expected host:port, got ''"),
        ("h0:1,h0:1", "h0:1 is listed twice"),
    ],
)
def test_wrong_hosts_are_refused(text: str, words: str) -> None:
    with pytest.raises(AddressError, match=words):
        parse_hosts(text)


@given(st.text(max_size=20) | st.text("h0:[],.7", max_size=12))
def test_any_text_is_addresses_that_print_alike_or_an_error(text: str) -> None:
    try:
        addresses = parse_hosts(text)
    except AddressError:
        return
    assert parse_hosts(",".join(str(address) for address in addresses)) == addresses


def tf_config(task: dict[str, Any], **cluster: Any) -> str:
    return json.dumps({"cluster": {"ps": ["p:1", "p:2"], "worker": ["w:1", "w:2"]} | cluster, "task": task})


@pytest.mark.parametrize(
    ("task", "cluster", "expected"),
    [
        ({"type": "ps", "index": 1}, {}, ("ps", 1)),
        ({"type": "worker", "index": 1}, {}, ("worker", 1)),
        ({"type": "worker", "index": "1"}, {}, ("worker", 1)),
        ({"type": "worker", "index": 1}, {"chief": ["c:1"]}, ("worker", 2)),
        ({"type": "chief", "index": 0}, {"chief": ["c:1"]}, ("worker", 0)),
        ({"type": "chief"}, {"chief": ["c:1"]}, ("worker", 0)),
        ({"type": "chief", "index": 0}, {"chief": ["c:1"], "worker": []}, ("worker", 0)),
    ],
)
def test_tf_config(task: dict[str, Any], cluster: dict[str, Any], expected: tuple[str, int]) -> None:
    found = cluster_from_tf_config(tf_config(task, **cluster))
    assert (found.task_type, found.task_index) == expected
    assert found.ps == (Address("p", 1), Address("p", 2))
    chief = (Address("c", 1),) if cluster else ()
    assert found.workers == chief + (() if "worker" in cluster else (Address("w", 1), Address("w", 2)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "TF_CONFIG: expected JSON, got '{'"),
        ("[]", "TF_CONFIG: cluster: expected an object, got null"),
        ('{"cluster": 3}', "TF_CONFIG: cluster: expected an object, got 3"),
        (tf_config({}), "TF_CONFIG: task.type: expected ps, worker or chief, got null"),
        (tf_config({"type": "evaluator", "index": 0}), 'task.type "evaluator" is not supported'),
        (tf_config({"type": "ps", "index": 0}, evaluator=["e:1"]), "cluster.evaluator is not supported"),
        (
            tf_config({"type": "ps", "index": 0}, wroker=[]),
            'cluster.wroker is unknown; did you mean "worker"?',
        ),
        (tf_config({"type": "ps", "index": 0}, ps=[]), "cluster.ps is missing"),
        (tf_config({"type": "ps", "index": 0}, worker=[]), "cluster.worker is missing"),
        (
            tf_config({"type": "ps", "index": 0}, ps="p:1"),
            'cluster.ps: expected a list of host:port, got "p:1"',
        ),
        (tf_config({"type": "ps", "index": 0}, ps=["p"]), "cluster.ps: expected host:port, got 'p'"),
        (
            tf_config({"type": "ps", "index": 0}, chief=["a:1", "b:1"]),
            "cluster.chief: expected one address, got 2",
        ),
        (
            tf_config({"type": "ps", "index": 2}),
            "task.index: expected a number below 2 (cluster.ps has 2), got 2",
        ),
        (tf_config({"type": "ps", "index": -1}), "task.index: expected a number below 2"),
        (tf_config({"type": "ps", "index": True}), "got true"),
        (tf_config({"type": "ps"}), "task.index: expected a number below 2 (cluster.ps has 2), got null"),
        (
            tf_config({"type": "chief", "index": 0}),
            "task.index: expected a number below 0 (cluster.chief has 0)",
        ),
        ("[" * 100000, "TF_CONFIG: expected JSON"),
    ],
)
def test_wrong_tf_config_names_its_key(text: str, words: str) -> None:
    with pytest.raises(AddressError) as caught:
        cluster_from_tf_config(text)
    assert words in str(caught.value) and str(caught.value).startswith("TF_CONFIG: ")
