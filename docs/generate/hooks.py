"""MkDocs hooks: add the generated pages, expand the navigation, and fit Markdown written for a repository to a site."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.generate import api, commands, experiments, logs, optimizers, policies, promises, protocol, way
from docs.generate.pictures import pictures

ROOT = Path(__file__).resolve().parents[2]
#: Pages that lie at the top of the repository, by their place on the site.
TOP = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def generated() -> dict[str, str]:
    """Markdown of every page that no one writes by hand, by its path."""
    return (
        policies.pages()
        | optimizers.pages()
        | commands.pages()
        | logs.pages()
        | protocol.pages()
        | promises.pages()
        | way.pages()
        | api.pages()
    )


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    pages = generated()
    config.nav = _expanded(config.nav, list(pages))
    return config


def _expanded(nav: Any, pages: list[str]) -> Any:
    """A value that ends in a slash becomes the generated pages of that folder, its README first."""
    if isinstance(nav, dict):
        return {title: _expanded(value, pages) for title, value in nav.items()}
    if isinstance(nav, list):
        found: list[Any] = []
        for each in nav:
            expanded = _expanded(each, pages)
            found += expanded if isinstance(each, str) and each.endswith("/") else [expanded]
        return found
    if isinstance(nav, str) and nav.endswith("/"):
        return [_titled(page) for page in pages if page.startswith(nav)]
    return nav


def _titled(page: str) -> Any:
    name = posixpath.basename(page).removesuffix(".md")
    return page if name == "README" else {name.replace("ps-lab-", "ps-lab "): page}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, markdown in generated().items():
        files.append(File.generated(config, path, content=markdown))
    for path, picture in pictures().items():
        files.append(File.generated(config, path, content=picture))
    for path, source in TOP.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, path, content=_moved(text)))
    return files


def _moved(markdown: str) -> str:
    """A page of the repository's top as one of docs/: links into docs/ stay, others become plain text."""

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if target.startswith(("#", "http")):
            return match[0]
        return f"[{text}]({target.removeprefix('docs/')})" if target.startswith("docs/") else text

    return _LINK.sub(link, markdown)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    # Python-Markdown looks into HTML elements only when told to.
    return experiments.filled(markdown).replace("<details>", '<details markdown="1">')
