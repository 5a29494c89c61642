"""The API reference: one page for each public package, which is one whose ``__init__`` lists ``__all__``.

The sources are read, not imported.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe

from docs.generate.docstrings import escaped
from docs.generate.table import code, table

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("psworker", "psserver", "pslab", "pswire")


@cache
def public() -> dict[str, tuple[str, ...]]:
    """The names that each public package exports."""
    return {module.path: tuple(sorted(_exported(module))) for module in _packages()}


@cache
def _loaded() -> griffe.ModulesCollection:
    loader = griffe.GriffeLoader(search_paths=[str(ROOT)], allow_inspection=False)
    for package in PACKAGES:
        loader.load(package)
    loader.resolve_aliases(external=False)
    return loader.modules_collection


def _packages() -> Iterator[griffe.Module]:
    todo = [_loaded()[package] for package in reversed(PACKAGES)]
    while todo:
        module = todo.pop()
        if module.exports is not None:
            yield module
        inner = [each for each in module.modules.values() if each.is_init_module and not each.is_alias]
        todo += sorted(inner, key=lambda each: each.path, reverse=True)


def _exported(module: griffe.Module) -> Iterator[str]:
    for name in module.exports or ():
        yield str(name)


def undocumented() -> list[str]:
    """Public names without a docstring, and those that are not there at all."""
    return [problem for package in public() for problem in undocumented_in(_loaded()[package])]


def undocumented_in(package: griffe.Module) -> Iterator[str]:
    if not package.has_docstring:
        yield f"{package.path} has no docstring"
    for name in sorted(_exported(package)):
        if name not in package.members:
            yield f"{package.path}.{name} is in __all__, but not there"
        elif not package.members[name].has_docstring:
            yield f"{package.path}.{name} has no docstring"
        elif package.members[name].is_class:
            yield from _undocumented_methods(f"{package.path}.{name}", package.members[name])


def _undocumented_methods(path: str, made: griffe.Object | griffe.Alias) -> Iterator[str]:
    """Its public methods and properties; the docstring of one that it overrides counts as theirs."""
    for name, member in made.members.items():
        method = member.is_function or "property" in member.labels
        if not name.startswith("_") and method and not _documented(made, name):
            yield f"{path}.{name} has no docstring"


def _documented(made: griffe.Object | griffe.Alias, name: str) -> bool:
    if name in made.members and made.members[name].has_docstring:
        return True
    return any(_documented(base, name) for base in made.mro())


def pages() -> dict[str, str]:
    found = {"api/README.md": _overview()}
    return found | {f"api/{package}.md": _page(package, names) for package, names in public().items()}


def _overview() -> str:
    rows = [
        (f"[`{package}`]({package}.md)", escaped(_first(package)), ", ".join(map(code, names)))
        for package, names in public().items()
    ]
    return (
        "# API reference\n\n"
        "What these packages list in `__all__` is public; everything else may change without notice.\n"
        "All of it is typed. Most users need [`psworker`](psworker.md) only, and authors of policies\n"
        "[`psserver.policies`](psserver.policies.md).\n\n" + table(("package", "is", "exports"), rows)
    )


def _first(package: str) -> str:
    docstring = _loaded()[package].docstring
    return docstring.value.split("\n\n")[0] if docstring else ""


def _page(package: str, names: tuple[str, ...]) -> str:
    modules = [name for name in names if _loaded()[f"{package}.{name}"].is_module]
    parts = [
        f"::: {package}\n    options:\n      heading_level: 1\n      members: []\n      show_root_full_path: true"
    ]
    if modules:
        links = [
            f"- [`{package}.{name}`]({package}.{name}.md)"
            for name in modules
            if f"{package}.{name}" in public()
        ]
        others = [f"::: {package}.{name}" for name in modules if f"{package}.{name}" not in public()]
        parts += ["\n".join(links), *others]
    parts += [f"::: {package}.{name}" for name in names if name not in modules]
    return "\n\n".join(parts) + "\n"
