"""Docstrings as Markdown."""

import inspect
import re


def paragraphs(text: str | None) -> list[str]:
    """A docstring's paragraphs; an indented one is code and stays as it is."""
    cleaned = re.sub(r"::(?=\n)", ":", inspect.cleandoc(text or ""))
    return [
        part if part.startswith("    ") else escaped(part) for part in cleaned.split("\n\n") if part.strip()
    ]


def escaped(text: str) -> str:
    """Plain text as Markdown: asterisks, brackets and comparison signs are no markup outside a code span."""
    spans = re.split(r"(``.+?``|`.+?`)", text, flags=re.S)
    spans[::2] = [span.replace("*", "\\*").replace("[", "\\[").replace("<", "&lt;") for span in spans[::2]]
    return "".join(spans)
