"""A lesson's page: its commands, its pictures, and the tables of what they gave."""

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from pslab.compare.groups import Goals, RunGroup, grouped
from pslab.runs.folder import Run
from tests.replay.command import ps_lab

LESSONS = Path(__file__).parents[2] / "docs" / "lessons"
# Three short lessons are run for every change, the others every night.
DAILY = ("3-", "4-", "7-")
TABLE = re.compile(r"<!-- measured: (.+?) -->\n((?:\|.*\n)+)")
# How far a cell may be off what is measured, relative: another processor rounds otherwise.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Lesson:
    """`folder`: a copy in which the commands have been run."""

    name: str
    folder: Path
    said: tuple[str, ...]

    @property
    def text(self) -> str:
        return (self.folder / "README.md").read_text(encoding="utf-8")

    def run(self, path: str) -> Run:
        return Run(self.folder / path)

    def groups(self, patterns: str) -> list[RunGroup]:
        """Of run folders, or folders of run folders: ``runs/a runs/b/workers=4* --training-loss 1``."""
        return _groups(self.folder, patterns)

    def group(self, patterns: str, label: str) -> RunGroup:
        groups = {group.label: group for group in self.groups(patterns)}
        assert label in groups, sorted(groups)
        return groups[label]


@cache
def _groups(folder: Path, patterns: str) -> list[RunGroup]:
    words = patterns.split()
    goals = {word: float(words[n + 1]) for n, word in enumerate(words) if word.startswith("--")}
    globs = words[: len(words) - 2 * len(goals)]
    runs = [Run(path) for pattern in globs for path in _runs(folder, pattern)]
    return grouped(runs, Goals(goals.get("--training-loss"), goals.get("--accuracy")))


def _runs(folder: Path, pattern: str) -> Iterator[Path]:
    found = sorted(folder.glob(pattern))
    assert found, f"{pattern}: nothing there"
    for path in found:
        if (path / "summary.json").is_file():
            yield path
        else:
            yield from sorted(inner for inner in path.iterdir() if (inner / "summary.json").is_file())


def commands(text: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def taken(name: str, folder: Path) -> Lesson:
    """Copy the lesson to `folder` and run its commands there, as they stand on the page."""
    shutil.copytree(LESSONS / name, folder)
    for picture in folder.glob("*.png"):
        picture.unlink()
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in commands((folder / "README.md").read_text(encoding="utf-8")):
            program, *arguments = shlex.split(line)
            assert program == "ps-lab", line
            # What a shell does to a word with an asterisk, as far as lessons need it.
            words = [w for a in arguments for w in (_expanded(a) if a.startswith("runs/") else [a])]
            result = ps_lab(*words)
            assert result.code == 0, f"{line}\n{result.err}"
            said.append(result.out)
    return Lesson(name, folder, tuple(said))


def _expanded(pattern: str) -> list[str]:
    return sorted(str(path) for path in Path().glob(pattern)) or [pattern]


def tables(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    """(patterns, rows), the heading among the rows."""
    for patterns, lines in TABLE.findall(text):
        rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines.splitlines()]
        yield patterns, [rows[0], *rows[2:]]


def agrees(cell: str, value: float) -> bool:
    """To the last digit that is shown, or within TOLERANCE."""
    digits = len(cell.partition(".")[2])
    return abs(float(cell) - value) <= max(1.01 * 10**-digits, TOLERANCE * abs(value))


def rewritten(lesson: Lesson) -> str:
    """The page with the numbers of this run in its tables, as many digits as before."""

    def table(match: re.Match[str]) -> str:
        patterns, rows = next(tables(match[0]))
        head = rows[0]
        lines = [f"<!-- measured: {patterns} -->", _line(head), "|" + "---|" * len(head)]
        for label, *cells in rows[1:]:
            group = lesson.group(patterns, label)
            values = [group.spread(measure).mean for measure in head[1:]]
            lines.append(_line([label, *(_shown(c, v) for c, v in zip(cells, values, strict=True))]))
        return "\n".join(lines) + "\n"

    return TABLE.sub(table, lesson.text)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _shown(cell: str, value: float) -> str:
    digits = len(cell.partition(".")[2])
    return f"{value:.{digits}f}" if digits or abs(value) < 1000 else f"{float(f'{value:.3g}'):.0f}"
