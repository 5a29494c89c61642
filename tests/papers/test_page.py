"""Each test exists that README.md names, here and in tests/policies."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
OTHER = (ROOT / "tests" / "policies" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [PAGE, OTHER], ids=["papers", "policies"])
def test_every_test_of_the_table_exists(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 40
    for path, function in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function in functions or (not function and functions), f"{path} has no {function}"


def test_every_test_of_the_papers_is_in_the_table() -> None:
    for path in sorted((ROOT / "tests" / "papers").glob("test_*.py")):
        assert path.name == "test_page.py" or f"tests/papers/{path.name}" in PAGE
