"""Markdown tables."""

from collections.abc import Iterable, Sequence


def table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, or an empty text without rows. A cell's line breaks and bars are escaped."""
    lines = [_line(row) for row in rows]
    if not lines:
        return ""
    return "\n".join([_line(heading), "|" + "---|" * len(heading), *lines]) + "\n"


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |"


def code(value: object) -> str:
    """A code span; nothing for None or an empty text."""
    return f"`{value}`" if value is not None and value != "" else ""


def toml(value: object) -> str:
    """A value as it stands in an experiment file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
    return str(value)
