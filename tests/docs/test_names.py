"""What the documents link to and name is there."""

import importlib
import importlib.util
import re
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from tests.docs.markdown import PAGES, ROOT, anchors, outside_blocks, text_of

#: Their links are checked here, those of docs/ when the site is built (scripts/docs).
OUTSIDE = [page for page in PAGES if ROOT / "docs" not in page.parents]
_DOTTED = re.compile(r"`((?:pswire|psserver|psworker|pslab)(?:\.\w+)+)(?:\(.*?\))?`")
_PATH = re.compile(
    r"`((?:protos|psserver|pswire|psworker|pslab|examples|benchmarks|scripts|tests|docs)/[\w./-]+)`"
)


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", outside_blocks(page)):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(there), f"{page.name} links to {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_dotted_names_are_there(page: Path) -> None:
    for name in sorted(set(_DOTTED.findall(text_of(page)))):
        assert resolves(name), f"{page.name} names {name}, which does not import"


def resolves(name: str) -> bool:
    """As a module, which need not be loaded for that, or as an attribute of one."""
    if is_module(name):
        return True
    owner, _, attribute = name.rpartition(".")
    if is_module(owner):
        try:
            return hasattr(importlib.import_module(owner), attribute)
        except ModuleNotFoundError as error:
            # A framework that is not installed here: the names are tested where it is.
            return error.name in ("jax", "optax", "torch")
    module, _, inner = owner.rpartition(".")
    return is_module(module) and hasattr(getattr(importlib.import_module(module), inner, None), attribute)


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=lambda p: str(p.relative_to(ROOT))
)
def test_paths_are_there(page: Path) -> None:
    for path in sorted(set(_PATH.findall(text_of(page)))):
        assert (ROOT / path).exists() or list(ROOT.glob(f"{path}*")), f"{page.name} names {path}"


def test_every_top_level_folder_is_on_the_map() -> None:
    made = ("runs", "build", "dist", ".")  # by using the checkout
    folders = [
        folder.name
        for folder in sorted(ROOT.iterdir())
        if folder.is_dir() and not folder.name.startswith(made) and not folder.name.endswith(".egg-info")
        if any(path.suffix != ".pyc" for path in folder.rglob("*.*"))
    ]
    page = text_of(ROOT / "CONTRIBUTING.md").partition("## Where things are")[2]
    assert [folder for folder in folders if not re.search(rf"^\| `{folder}\b", page, re.M)] == []


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_a_picture(picture: Path) -> None:
    assert xml.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"


_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_tests_that_are_named_are_there(page: Path) -> None:
    for path, name in _TEST.findall(text_of(page)):
        assert (ROOT / path).exists(), f"{page.name} names {path}, which is not there"
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{path} has no {name}"
