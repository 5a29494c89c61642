"""What users read, in one text file for each area: tests/<area>/sentences.txt.

A test gives what an error, a status or a command says to the fixture `sentences`, which compares it with the file.
Tests themselves assert types, codes and fields. So whoever improves a sentence edits no test:
`pytest tests/<area> -n 0 --regenerate` writes the file.
"""

import ast
import fcntl
import platform
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

NAME = "sentences.txt"
FIRST, MORE = "  - ", "    "
# What differs from run to run and from machine to machine, and what stands for it in the file.
VOLATILE = (
    # Not the largest whole number that a message may hold.
    (re.compile(r"\b(?!9007199254740991\b)[0-9a-f]{16}\b"), "{job}"),
    (re.compile(re.escape(str(Path(__file__).parents[1]))), "{root}"),
    (re.compile(r"/[^\s'\":,;]*/pytest-of-[^/\s]+/pytest-\d+(/popen-gw\d+)?/[^/\s'\":,;]+"), "{folder}"),
    # A test's own count of its folders.
    (re.compile(r"(?<=\{folder\}/)\d+(?=/)"), "{number}"),
    (re.compile(re.escape(tempfile.gettempdir()) + r"(?=[/ ])"), "{temporary}"),
    (re.compile(r"\bLinux " + re.escape(platform.release())), "Linux {kernel}"),
    (re.compile(r"(?<=did not answer for )\d+ s\b"), "{seconds} s"),
    (re.compile(r"/proc/\d+/fd/\d+"), "/proc/{process}/fd/{number}"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "{address}"),
    (re.compile(r"(127\.0\.0\.1|localhost|\[::1\]):\d{4,5}\b"), r"\1:{port}"),
)

Sentences = dict[str, list[str]]
"""By test, in the order in which it says them."""


class Recorder:
    """Of one test. `known`: what its file says; None to write it anew."""

    def __init__(self, known: list[str] | None) -> None:
        self.known = known
        self.seen: list[str] = []
        # A text that is another one was reported: those behind it are not missed, too.
        self.differs = False

    @contextmanager
    def raises(self, kind: type[BaseException]) -> Iterator[None]:
        """Compare what the error says that ends the block."""
        with pytest.raises(kind) as raised:
            yield
        self.check(raised)

    def check(self, *texts: object) -> None:
        """Compare each text, or what an exception says, with the next one of the file."""
        for text in texts:
            if isinstance(text, pytest.ExceptionInfo):
                text = text.value
            self.seen.append(plain(str(text)))
            if self.known is not None:
                number = len(self.seen) - 1
                expected = self.known[number] if number < len(self.known) else None
                self.differs = self.seen[-1] != expected
                assert self.seen[-1] == expected, f"see {NAME} beside this test; --regenerate writes it anew"


def plain(text: str) -> str:
    """Return the text with names for what differs from run to run, and without white space at the ends of lines."""
    for pattern, name in VOLATILE:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def parse(text: str) -> Sentences:
    found: Sentences = {}
    texts: list[str] = []
    for line in filter(None, text.splitlines()):
        if line.startswith(FIRST):
            texts.append(line.removeprefix(FIRST))
        elif line.startswith(MORE):
            texts[-1] += "\n" + line.removeprefix(MORE)
        else:
            texts = found[line] = []
    return found


def render(sentences: Sentences) -> str:
    blocks = []
    for name in sorted(sentences):
        texts = (FIRST + text.replace("\n", "\n" + MORE) for text in sentences[name])
        blocks.append("\n".join([name, *texts]) + "\n")
    return "\n".join(blocks)


@cache
def read(path: Path) -> Sentences:
    return parse(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(path: Path, name: str, texts: list[str]) -> None:
    """Put one test's sentences into the file, and drop those of tests that are gone."""
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        kept = {key: value for key, value in parse(file.read()).items() if exists(path.parent, key)}
        file.truncate(0)
        file.write(render({**kept, name: texts}))


def exists(folder: Path, name: str) -> bool:
    """The test that is named by `name`, such as test_ends.py::test_stop[async], is there."""
    file, _, test = name.partition("::")
    return test.partition("[")[0].rpartition("::")[2] in _functions(folder / file)


@cache
def _functions(path: Path) -> frozenset[str]:
    if not path.exists():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
