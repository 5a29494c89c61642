"""Pages that list what the code has a table of name all of it."""

import re
from collections.abc import Iterable
from typing import get_args

from docs.generate import logs, protocol
from psserver.service.guard.authorization import ROLES
from pswire.decisions import entries, orders
from tests.docs.markdown import ROOT

DOCS = ROOT / "docs"


def missing(words: Iterable[str], text: str) -> list[str]:
    """Those that are no word of `text`."""
    return [word for word in words if not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)]


def row(page: str, first: str) -> str:
    """The line of a table that begins with `first`."""
    (found,) = (line for line in (DOCS / page).read_text().splitlines() if line.startswith(f"| {first}"))
    return found


def test_a_missing_word_is_found() -> None:
    assert missing(("Push", "Pull"), "| `Push`, `Puller` |") == ["Pull"]


def test_the_generated_pages_have_every_kind_of_entry_and_every_method() -> None:
    made = logs.pages()["log-entries.md"] + protocol.pages()["protocol.md"]
    headings = {line.removeprefix("## ") for line in made.splitlines() if line.startswith("## ")}
    assert set(entries.KINDS) <= headings
    assert not missing((path.lstrip("/") for path in ROLES if path.startswith("/pswire.v1.")), made)


def test_the_table_of_words_has_every_order() -> None:
    named = (kind.__name__.lower() for kind in get_args(orders.Order) if kind is not orders.Note)
    assert not missing(named, row("design.md", "order |"))
