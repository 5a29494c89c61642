"""The coordinator has one way in, and none out but its answers."""

import ast
import json
from pathlib import Path

import pytest

import psserver.coordinator
from psserver.coordinator import Coordinator, inputs
from psserver.coordinator.coordinator import HANDLERS
from psserver.coordinator.terms import Extent, Proposal
from psserver.coordinator.units import WorkTerms
from pswire import protocol
from tests.promises import promise

SOURCES = sorted(Path(*psserver.coordinator.__path__).rglob("*.py"))

# What callers may ask between two inputs; none of it changes anything.
READING = {
    *("abandoned", "change", "due", "missing", "policy", "rejoin_limit", "remaining", "saved"),
    *("settable_rate", "terms", "unknown_session", "waits"),
}


@promise(
    "The coordinator waits for nothing and calls nobody: every change is an input, and every effect an output"
)
def test_one_entrance() -> None:
    public = {name for name in vars(Coordinator) if not name.startswith("_")}
    assert public == READING | {"take"}
    assert set(HANDLERS) == set(inputs.KINDS.values())


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.stem)
def test_it_waits_for_nothing_and_is_given_nothing_to_call(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
        if isinstance(node, ast.arguments):
            hints = [ast.unparse(each.annotation) for each in node.args + node.kwonlyargs if each.annotation]
            assert not [hint for hint in hints if "Callable" in hint]


EXAMPLES = (
    *(inputs.Opened(), inputs.ModelProposed(Proposal("f", {"name": "sgd"}, 2.5))),
    *(inputs.Resumed(3, frozenset({"w0", "w1"})), inputs.Stopping("enough", True, "done")),
    *(inputs.JoinAsked("w0", "s", None, True, True, 4, "numpy", "f", "p"), inputs.Connected("w0", 1, "s")),
    inputs.Disconnected("w0", 1),
    *(inputs.Requested("w0", 1, protocol.Ready(4), norm=2.0), inputs.DataSized("w0", Extent(2, 8))),
    *(
        inputs.WorkDeclared(WorkTerms(4, 2, 3, "d", True, 1)),
        inputs.WorkDeclared(None),
    ),
    *(
        inputs.Executed(4, 2, 9, "w", True),
        inputs.SaveAsked(),
        inputs.SaveFailed(4, "full"),
        inputs.Tick(),
    ),
    *(inputs.NoteAdded("hot"), inputs.ChangeAsked("ssp", {"slack": 3}, "you", "why", 0.5)),
)


@pytest.mark.parametrize("given", EXAMPLES, ids=lambda given: type(given).__name__)
def test_an_input_comes_back_from_its_form_on_the_wire(given: inputs.Input) -> None:
    assert inputs.decode(json.loads(json.dumps(inputs.encode(given), allow_nan=False))) == given


def test_there_is_an_example_of_each() -> None:
    assert {type(each) for each in EXAMPLES} == set(inputs.KINDS.values())
