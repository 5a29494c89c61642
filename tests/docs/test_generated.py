"""Pages that come from the code say all that the code has; nothing public is undocumented."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import click

from docs.generate import api, commands, experiments, optimizers, pictures, policies
from psserver import optimizers as rules
from psserver import policies as built_in
from psserver.policies.builtin import BUILTIN
from pswire.config.flags import meanings_of
from pswire.exits import ExitCode
from tests.docs.markdown import ROOT, text_of

SVG = "{http://www.w3.org/2000/svg}"


def test_every_policy_has_a_page() -> None:
    pages = policies.pages()
    assert set(pages) == {"policies/README.md", *(f"policies/{name}.md" for name in built_in.names())}
    for name in built_in.names():
        assert f"({name}.md)" in pages["policies/README.md"]
        assert (
            "**Guarantee**" in pages[f"policies/{name}.md"] and "**Source**" in pages[f"policies/{name}.md"]
        )


def test_the_table_of_compositions_has_every_policy() -> None:
    rows = re.findall(r"^\| \[`([\w-]+)`\].*`.+`.*`.+`.*`.+`", policies.pages()["policies/README.md"], re.M)
    assert rows == list(built_in.names())


def test_the_page_that_helps_to_choose_has_every_policy_with_a_picture() -> None:
    page = policies.pages()["policies/README.md"]
    assert re.findall(r"^### \[`([\w-]+)`\]", page, re.M) == list(built_in.names())
    assert re.findall(r"\]\(([\w-]+)\.svg\)", page) == list(built_in.names())
    assert page.count("**Use it when** ") == len(built_in.names())


def test_a_picture_shows_who_waits_what_is_dropped_and_how_much_a_gradient_counts(tmp_path: Path) -> None:
    drawn = {
        name: ET.fromstring(pictures.picture(BUILTIN[name], tmp_path / name))
        for name in ("sync", "ringmaster", "softsync")
    }

    def radii(name: str) -> set[str]:
        return {dot.attrib["r"] for dot in drawn[name].iter(f"{SVG}circle")}

    waiting = [box for box in drawn["sync"].iter(f"{SVG}rect") if box.get("fill") == "url(#waiting)"]
    assert len(waiting) >= 8 and not list(drawn["sync"].iterfind(f"./{SVG}path"))
    assert len(list(drawn["ringmaster"].iterfind(f"./{SVG}path"))) >= 3
    assert len(radii("sync")) == 1 and len(radii("softsync")) > 1


def test_every_optimizer_and_schedule_has_a_section() -> None:
    [page] = optimizers.pages().values()
    headings = re.findall(r"^##+ `(.+)`$", page, re.M)
    assert headings == [*rules.names(), *rules.schedule_names()]


def test_every_option_of_every_command_is_on_a_page() -> None:
    pages = commands.pages()
    for program, command in commands.PROGRAMS.items():
        group = command.commands if isinstance(command, click.Group) else {}
        found = {program: command} | {f"{program}-{name}": inner for name, inner in group.items()}
        for page, each in found.items():
            options = [option for option in each.params if isinstance(option, click.Option)]
            names = [name for option in options if not option.hidden for name in option.opts]
            assert [name for name in names if name not in pages[f"commands/{page}.md"]] == []
    assert all(f"| `{int(code)}` |" in pages["exit-codes.md"] for code in ExitCode)


def test_every_key_of_an_experiment_file_has_a_meaning() -> None:
    for name, section in experiments.sections().items():
        assert set(meanings_of(section)) == set(section.model_fields), name


def test_every_section_of_an_experiment_file_is_on_the_page() -> None:
    page = text_of(ROOT / "docs" / "experiments.md")
    assert re.findall(r"<!-- keys: (.+?) -->", page) == list(experiments.sections())
    assert "| `max_staleness` |" not in page and "| `wire_dtype` |" in experiments.filled(page)


def test_everything_public_has_a_docstring() -> None:
    assert api.undocumented() == []
    assert {"psworker", "psserver", "psserver.policies", "pslab", "pswire"} <= set(api.public())


def test_an_undocumented_name_is_found() -> None:
    """The check reads assignments and type aliases, too."""
    package = api.griffe.visit(
        "package",
        filepath=ROOT / "package.py",
        code='"""Doc."""\n__all__ = ["good", "bare", "absent"]\ngood = 1\n"""Good."""\nbare = 2\n',
    )
    assert [*api.undocumented_in(package)] == [
        "package.absent is in __all__, but not there",
        "package.bare has no docstring",
    ]


def test_an_undocumented_method_is_found() -> None:
    """A docstring that is inherited counts; private names and attributes do not."""
    modules = api.griffe.ModulesCollection()
    modules["package"] = package = api.griffe.visit(
        "package",
        filepath=ROOT / "package.py",
        code='''"""Doc."""
__all__ = ["Made"]

class Base:
    """Doc."""
    def told(self):
        """Doc."""

class Made(Base):
    """Doc."""
    def told(self): ...
    def bare(self): ...
    def _own(self): ...
    @property
    def size(self): ...
''',
        modules_collection=modules,
    )
    assert [*api.undocumented_in(package)] == [
        "package.Made.bare has no docstring",
        "package.Made.size has no docstring",
    ]
