"""The table of sentences is held to the code: whoever looks for what he sees finds it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "tls.md"
PACKAGES = ("pswire/security", "psworker/control", "psserver/service/guard", "psserver/settings.py")
# What stands for something that differs from case to case.
VARIES = re.compile(r"\.\.\.|ps://\S+|'w[0-9]'|\bHOST\b|\b(observer|worker|server|Join)\b|--bind|[;:] ")


def sentences() -> list[str]:
    """The first column."""
    section = PAGE.read_text(encoding="utf-8").partition("## When it does not connect")[2]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [row[0].removeprefix("| ").partition(" (exit code")[0].partition(" (tried")[0] for row in rows[1:]]


def said(text: str) -> str:
    """What the strings of a module say, one behind the other; holes of f-strings are gaps."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return "\n".join(found)


def test_every_sentence_of_the_table_is_one_of_the_code() -> None:
    files = [
        path
        for each in PACKAGES
        for path in ([ROOT / each] if each.endswith(".py") else (ROOT / each).glob("*.py"))
    ]
    code = "\n".join(said(path.read_text(encoding="utf-8")) for path in files)
    table = sentences()
    assert len(table) >= 15
    for sentence in table:
        fragments = [part.strip(" ,:") for part in VARIES.split(sentence) if part]
        long = [part for part in fragments if len(part) > 8]
        assert long, sentence
        for part in long:
            assert part in code, f"{part!r} of {sentence!r} is said nowhere"
