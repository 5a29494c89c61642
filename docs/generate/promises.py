"""The promises that tests hold, from `@promise("...")` in `tests/`."""

import ast
from collections.abc import Iterator
from pathlib import Path

from docs.generate.docstrings import escaped
from docs.generate.table import code, table

TESTS = Path(__file__).resolve().parents[2] / "tests"

INTRODUCTION = """# Promises

Each sentence is held by the test beside it, which runs in every merge or every night. A file's area is the folder below
`tests/`."""


def promises(path: Path) -> Iterator[tuple[str, str]]:
    """Sentence and test of each mark in a file."""
    text = path.read_text(encoding="utf-8")
    if "@promise" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if (
                    isinstance(mark, ast.Call)
                    and isinstance(mark.func, ast.Name)
                    and mark.func.id == "promise"
                ):
                    yield str(ast.literal_eval(mark.args[0])), f"{path.name}::{node.name}"


def pages() -> dict[str, str]:
    parts = [INTRODUCTION]
    for folder in sorted(path for path in TESTS.iterdir() if path.is_dir()):
        rows = [
            (escaped(sentence), code(test))
            for path in sorted(folder.rglob("test_*.py"))
            for sentence, test in promises(path)
        ]
        if rows:
            parts += [f"## {folder.name}", table(("promise", "test"), rows)]
    return {"promises.md": "\n\n".join(parts) + "\n"}
