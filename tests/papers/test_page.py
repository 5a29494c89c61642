"""Each test that README.md names exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).with_name("README.md").read_text(encoding="utf-8")


def test_every_test_of_the_table_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 40
    for path, function in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function in functions or (not function and functions), f"{path} has no {function}"


def test_every_test_of_the_papers_is_in_the_table() -> None:
    for path in sorted((ROOT / "tests" / "papers").glob("test_*.py")):
        assert path.name == "test_page.py" or f"tests/papers/{path.name}" in PAGE
