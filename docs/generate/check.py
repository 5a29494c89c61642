"""Check the built site: ``python -m docs.generate.check build/site``.

Every link and anchor leads somewhere, no page loads anything from a network, every public name stands in the API
reference.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docs.generate import api

_STYLE_URL = re.compile(r"""(?:url\(|@import\s+)["']?([^"')]+)""")
#: (element, attribute) whose address a browser fetches by itself.
_LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}


@dataclass
class Parsed(HTMLParser):
    """The ids of a page, where its links lead, and what it loads."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id":
                self.ids.add(value)
            elif (tag, name) in _LOADED:
                self.loaded.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)


@cache
def parsed(page: Path) -> Parsed:
    parser = Parsed()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def problems(site: Path) -> Iterator[str]:
    """Everything that is wrong with the site, in words."""
    for page in sorted(site.rglob("*.html")):
        name = page.relative_to(site)
        if str(name) == "404.html":  # its links are those of a server's root
            continue
        for address in parsed(page).loaded:
            if _is_external(address):
                yield f"{name} loads {address} from a network"
            elif not _target(page, address).is_file():
                yield f"{name} loads {address}, which is not there"
        for address in parsed(page).links:
            if not _is_external(address) and (problem := _broken(page, address)):
                yield f"{name} links to {address}: {problem}"
    for style in sorted(site.rglob("*.css")):
        for address in _STYLE_URL.findall(style.read_text(encoding="utf-8")):
            if _is_external(address):
                yield f"{style.relative_to(site)} loads {address} from a network"
    yield from _unreferenced(site)
    yield from api.undocumented()


def _is_external(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") or bool(parts.netloc)


def _target(page: Path, address: str) -> Path:
    path = unquote(urlsplit(address).path)
    return (page.parent / path).resolve() if path else page


def _broken(page: Path, address: str) -> str | None:
    """What is wrong with a link, if anything. A fragment of a page that is no HTML is not looked at."""
    parts, target = urlsplit(address), _target(page, address)
    if parts.scheme:
        return None
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "no such page"
    if parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in parsed(target).ids:
        return "no such anchor"
    return None


def _unreferenced(site: Path) -> Iterator[str]:
    for package, names in api.public().items():
        page = site / "api" / f"{package}.html"
        if not page.is_file():
            yield f"{package} has no page in the API reference"
            continue
        links = " ".join(parsed(page).links)
        for name in names:
            there = f"{package}.{name}" in parsed(page).ids or f"{package}.{name}.html" in links
            if not there:
                yield f"{package}.{name} does not stand in the API reference"


def main() -> int:
    site = Path(sys.argv[1])
    pages = len(list(site.rglob("*.html")))
    found = list(problems(site))
    for problem in found:
        print(f"docs: {problem}", file=sys.stderr)
    if not found:
        print(f"docs: {pages} pages; every link and anchor leads somewhere; nothing is loaded from a network")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
