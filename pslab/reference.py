"""What can be set, as Markdown made from the data that checks it: ``python -m pslab.reference policies``.

Each page is a function without arguments; the documentation site and the command call the same ones.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from psserver import optimizers as server_optimizers
from psserver.policies.builtin import FAMILIES, PolicySpec
from psserver.policies.parts.weights import FAMILIES as WEIGHTS
from pswire.config.distributions import DISTRIBUTIONS
from pswire.config.experiment import Experiment
from pswire.knobs import Knob, knobs_of, toml
from psworker.local.registry import KINDS

# Staleness at which weights are shown, in versions.
TAUS = (0, 1, 2, 4, 8, 16)


def policies() -> str:
    """The built-in policies by family, and the families of weights."""
    parts = []
    for title, family in FAMILIES.items():
        parts.append(f"## {title.rstrip('.')}")
        parts += [_policy(name, spec) for name, spec in family.items()]
    return _page("Policies", *parts, "## Weights", _weights())


def _policy(name: str, spec: type[PolicySpec]) -> str:
    facts = {
        "Guarantee": spec.guarantee,
        "Source": spec.source,
        "Servers keep": spec.cost.stores,
        "Work per push": spec.cost.work,
        "Lost": spec.cost.waste,
        "Meant for": _settings("optimizer", spec.optimizer),
    }
    known = "\n".join(f"- **{title}**: {_text(text)}" for title, text in facts.items() if text)
    return _section(f"### `{name}`", inspect.getdoc(spec) or "", known, _knobs(knobs_of(spec)))


def _settings(section: str, keys: Mapping[str, object]) -> str:
    return ", ".join(f"`{section}.{key} = {toml(value)}`" for key, value in keys.items())


def _weights() -> str:
    a, b = 0.5, 4
    text = (
        f"What a contribution counts by its staleness tau, for `policy.a = {a}` and `policy.b = {b}` "
        "(`fedbuff`; classes of the same names are in `psserver.policies`)."
    )
    rows = []
    for name, family in WEIGHTS.items():
        weight = family(a, b)
        values = [f"{weight(tau):.3g}" for tau in TAUS]
        rows.append([f"`{name}`", _first_line(type(weight)), *values])
    return f"{text}\n\n{_table(['weight', 'formula and source', *map(str, TAUS)], rows)}"


def optimizers() -> str:
    """The servers' optimizers and learning-rate schedules."""
    rules = [_described(server_optimizers.describe(name)) for name in server_optimizers.names()]
    schedules = [
        _described(server_optimizers.describe_schedule(n)) for n in server_optimizers.schedule_names()
    ]
    return _page("Optimizers", *rules, "## Learning-rate schedules", *schedules)


def _described(entry: server_optimizers.Description) -> str:
    return _section(f"### `{entry.name}`", entry.summary, entry.notes, _knobs(entry.knobs))


def local_rules() -> str:
    """What workers may do between pull and push. A policy chooses the rule and gives every number."""
    rules = [
        _section(f"### `{name}`", f"{kind.meaning[0].upper()}{kind.meaning[1:]}.", _knobs(kind.knobs))
        for name, kind in KINDS.items()
    ]
    return _page("Local rules", *rules)


def distributions() -> str:
    """Times that are drawn, as an experiment file names them."""
    entries = []
    for name, distribution in DISTRIBUTIONS.items():
        signature = ", ".join(knob.name for knob in distribution.parameters)
        entries.append(_section(f"### `{name}({signature})`", _knobs(distribution.parameters)))
    trace = _section("### `trace(file)`", "Times from a file, in its order, from a random place on.")
    return _page("Distributions", "All times are in seconds.", *entries, trace)


def experiment() -> str:
    """The sections and keys of an experiment file."""
    sections = []
    for name, field in Experiment.model_fields.items():
        model = _model(field)
        title = f"[{name}.N]" if get_origin(field.annotation) is dict else f"[{name}]"
        rows = [_key(key, each) for key, each in model.model_fields.items()]
        text = (inspect.getdoc(model) or "").removeprefix(title).lstrip(": ")
        sections.append(_section(f"## `{title}`", text, _table(["key", "type", "default", "meaning"], rows)))
        sections += [_listed(name, key, each) for key, each in model.model_fields.items() if _models(each)]
    return _page("Experiment files", *sections)


def _listed(section: str, key: str, field: FieldInfo) -> str:
    (model,) = _models(field)
    rows = [_key(name, each) for name, each in model.model_fields.items()]
    text = inspect.getdoc(model) or ""
    return _section(f"### `[[{section}.{key}]]`", text, _table(["key", "type", "default", "meaning"], rows))


def _models(field: FieldInfo) -> list[type[BaseModel]]:
    """Of a field that holds a list or a table of sections: their classes."""
    arguments = getattr(field.annotation, "__args__", ())
    return [each for each in arguments if isinstance(each, type) and issubclass(each, BaseModel)]


def _model(field: FieldInfo) -> type[BaseModel]:
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    (model,) = _models(field)
    return model


def _key(name: str, field: FieldInfo) -> list[str]:
    default = "required" if field.is_required() else f"`{toml(field.get_default(call_default_factory=True))}`"
    return [f"`{name}`", _kind(field), default, _text(field.description or "")]


def _kind(field: FieldInfo) -> str:
    """The type of a key and its bounds, as a reader of TOML knows them."""
    names = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    annotation: Any = field.annotation
    choices = getattr(annotation, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        return ", ".join(f"`{toml(choice)}`" for choice in choices)
    if annotation not in names:
        return "list of tables" if get_origin(annotation) is list else "table"
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [
        f"{sign} {getattr(each, key):g}"
        for each in field.metadata
        for key, sign in signs.items()
        if hasattr(each, key)
    ]
    return " ".join([names[annotation], " and ".join(bounds)]).rstrip()


def _knobs(knobs: Iterable[Knob]) -> str:
    rows = []
    for knob in knobs:
        default = "required" if knob.required else f"`{toml(knob.default)}`"
        rows.append([f"`{knob.name}`", default, knob.domain.describe(), _text(knob.meaning)])
    return _table(["knob", "default", "range", "meaning"], rows) if rows else "It has no knobs."


def _table(titles: list[str], rows: Iterable[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def _text(text: str) -> str:
    """One line; Markdown must not take an underscore or a bracket of prose for its own."""
    return " ".join(text.split()).replace("<", "&lt;")


def _first_line(made: type[object]) -> str:
    return _text((inspect.getdoc(made) or "").partition("\n\n")[0])


def _section(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _page(title: str, *parts: str) -> str:
    return _section(f"# {title}", *parts) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "policies": policies,
    "optimizers": optimizers,
    "local-rules": local_rules,
    "distributions": distributions,
    "experiment": experiment,
}


def main(arguments: list[str]) -> int:
    """Print the page that is named; with another name, say which there are."""
    if len(arguments) != 1 or arguments[0] not in PAGES:
        print(f"expected one of {', '.join(PAGES)}, got {' '.join(arguments) or 'nothing'}", file=sys.stderr)
        return 2
    sys.stdout.write(PAGES[arguments[0]]())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
