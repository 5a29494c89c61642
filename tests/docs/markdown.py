"""The documents and their snippets."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
#: Every page that somebody writes by hand.
PAGES = (
    *(README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "tests").rglob("*.md")),
)

_BLOCK = re.compile(
    r"(?:^<!-- (?P<marker>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.S | re.M
)


@dataclass(frozen=True)
class Block:
    """A fenced block. `kind`: the first word of the line above it ("test", "run", "output", "illustrative"), or
    nothing; `detail`: the rest of that line."""

    page: Path
    kind: str
    detail: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.splitlines()[0][:60]}"


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> Iterator[Block]:
    for found in _BLOCK.finditer(text_of(page)):
        kind, _, detail = (found["marker"] or "").partition(":")
        yield Block(page, kind.strip(), detail.strip(), found["language"], found["text"])


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


def named(page: str, name: str) -> str:
    """The text of the block that is marked ``<!-- test: name -->`` on a page, whose path is from the root."""
    [text] = [block.text for block in blocks(ROOT / page) if (block.kind, block.detail) == ("test", name)]
    return text


def outside_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.S | re.M)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as on the site and on code hosts."""
    headings = re.findall(r"^#+ (.+)$", outside_blocks(page), re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}
