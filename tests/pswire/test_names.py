"""Suggestions, exit codes, the wire form of specifications."""

import pytest

from pswire.exits import ExitCode, exit_codes_text
from pswire.messages import specs_from_wire, specs_to_wire
from pswire.model.plan import PlanError, VariableSpec, make_plan
from pswire.nearest import did_you_mean, nearest
from pswire.v1 import model_pb2
from tests.sentences import Recorder


def test_nearest_name() -> None:
    assert nearest("max_stalenes", ["max_staleness", "aggregate"]) == "max_staleness"
    assert nearest("SYNC", ["sync", "async"]) == "sync"
    assert nearest("zzz", ["sync", "async"]) is None
    assert did_you_mean("snyc", ["sync"]) == '; did you mean "sync"?'
    assert did_you_mean("zzz", ["sync", "async"]) == "; known: sync, async"
    assert did_you_mean("zzz", []) == ""


def test_exit_codes_are_what_the_documentation_says() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "INTERNAL": 1,
        "USAGE": 2,
        "UNREACHABLE": 3,
        "ADDRESS_IN_USE": 4,
        "REFUSED": 5,
        "JOB_FAILED": 6,
        "ABANDONED": 7,
        "DIVERGED": 8,
        "VIOLATIONS": 9,
        "UNTRUSTED": 10,
        "STORAGE": 11,
        "RESOURCES": 12,
        "MISSING": 13,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
    }
    assert ExitCode(3) is ExitCode.UNREACHABLE and ExitCode.UNREACHABLE.meaning in exit_codes_text()
    assert len(exit_codes_text().splitlines()) == len(ExitCode)


def test_specifications_cross_the_wire() -> None:
    specs = (VariableSpec("w", (2, 3), "bfloat16"), VariableSpec("m", (), kind="state"))
    message = [model_pb2.VariableSpec.FromString(one.SerializeToString()) for one in specs_to_wire(specs)]
    assert specs_from_wire(message) == specs


def test_garbage_specifications_are_plan_errors(sentences: Recorder) -> None:
    with pytest.raises(PlanError) as refused:
        specs_from_wire([model_pb2.VariableSpec(name="w")])
    sentences.check(refused)
    with pytest.raises(PlanError, match="got number 77"):
        specs_from_wire([model_pb2.VariableSpec.FromString(b"\x20\x4d")])
    huge = model_pb2.VariableSpec(
        name="w", shape=[2**62] * 100, dtype="float32", kind=model_pb2.VARIABLE_KIND_STATE
    )
    with pytest.raises(PlanError, match="at most"):
        make_plan(specs_from_wire([huge]), 1)
