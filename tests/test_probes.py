"""Tests see objects from outside; what must be seen from inside is shown by a probe (`tests.probes`)."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
# The fork server does what the interpreter does at a program's start and end.
PROBES = {TESTS / "probes.py", TESTS / "service" / "probe.py", TESTS / "forking" / "server.py"}
# A test's own object, a subclass speaking to its base, and what libraries call public in spite of the underscore.
OWN = {"self", "cls", "super"}
PUBLIC = {"_fields", "_replace", "_asdict", "_exit"}


def reaches(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        owner = node.value.func if isinstance(node.value, ast.Call) else node.value
        if node.attr not in PUBLIC and not (isinstance(owner, ast.Name) and owner.id in OWN):
            yield node.lineno, ast.unparse(node)


def test_only_probes_reach_for_private_names() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}: {text}"
        for path in sorted(TESTS.rglob("*.py"))
        if path not in PROBES
        for line, text in reaches(path.read_text(encoding="utf-8"))
    ]
    assert not found, "show it by a probe in tests/probes.py instead:\n" + "\n".join(found)


def test_the_check_finds_what_it_is_for() -> None:
    source = "session._shards[0]\nself._own\nsuper()._base\nrow._fields\nmade()._inner"
    assert sorted(reaches(source)) == [(1, "session._shards"), (5, "made()._inner")]
