"""Reading a file that a user names: not more of it than there can be."""

from pathlib import Path


class TooLong(ValueError):
    """The file goes on beyond what such a file may have; the text names both."""


def read_text(path: Path, most: int, encoding: str = "utf-8") -> str:
    """The text of at most `most` characters. Raises TooLong, OSError, UnicodeDecodeError."""
    with path.open(encoding=encoding) as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise TooLong(f"{path}: expected at most {most} characters, and it goes on")
    return text
