"""What a command line leaves open until its process has a node: blanks, which whoever starts it there fills in.

A blank begins with NUL, which no command line can hold: nothing that a user wrote is taken for one. Standard library
only, for it is loaded on every node.
"""

from collections.abc import Mapping, Sequence
from typing import Final

# The number of the process whose child it becomes.
PARENT: Final = "\0parent;"
# The interface of its node to listen on.
BIND: Final = "\0bind;"
# The same as an address, with port 0.
OWN: Final = "\0own;"
# The run folder, as it is called there.
FOLDER: Final = "\0folder;"


def file(name: str) -> str:
    """The path of one of the task's files."""
    return f"\0file {name};"


def values(parent: int, host: str, folder: str, files: Mapping[str, str]) -> dict[str, str]:
    """For each blank what stands there. `files`: paths by name."""
    own = f"[{host}]:0" if ":" in host else f"{host}:0"
    known = {PARENT: str(parent), BIND: host, OWN: own, FOLDER: folder}
    return known | {file(name): path for name, path in files.items()}


def filled(text: str, known: Mapping[str, str]) -> str:
    """`text` with all its blanks filled in."""
    for blank, value in known.items():
        text = text.replace(blank, value)
    return text


def filled_all(words: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """As `filled`, word by word."""
    return [filled(word, known) for word in words]


def filled_values(table: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """As `filled`, for the values of an environment."""
    return {name: filled(value, known) for name, value in table.items()}
