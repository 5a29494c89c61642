"""Tables of an experiment file's keys, from the schema: types and bounds by pydantic, meanings from the docstrings.

A page asks for a section's table with the line ``<!-- keys: simulation -->``.
"""

import inspect
import re
from html import escape
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from docs.generate.docstrings import escaped
from docs.generate.table import code, table, toml
from pslab.experiment import Experiment
from pswire.config.flags import bounds_of, meanings_of

_ASKED = re.compile(r"^<!-- keys: ([\w.]+) -->$", re.M)


def filled(markdown: str) -> str:
    """The page with a table behind every line that asks for one."""
    return _ASKED.sub(lambda asked: f"{asked[0]}\n\n{keys(asked[1])}", markdown)


def sections() -> dict[str, type[BaseModel]]:
    """Every table of an experiment file, entries of lists too ("faults.crashes")."""
    found: dict[str, type[BaseModel]] = {}
    for name, field in Experiment.model_fields.items():
        found |= _with_inner(name, _model_in(field.annotation))
    return found


def _with_inner(name: str, section: type[BaseModel]) -> dict[str, type[BaseModel]]:
    found = {name: section}
    for key, inner in section.model_fields.items():
        entries = [each for each in (inner.annotation, *get_args(inner.annotation)) if _is_model(each)]
        for entry in entries:
            found |= _with_inner(f"{name}.{key}", entry)
    return found


def keys(section: str) -> str:
    """The table of one section."""
    model = sections()[section]
    meanings = meanings_of(model)
    schema = model.model_json_schema(mode="serialization")["properties"]
    rows = [
        (code(key), _type(schema[key], field), code(_default(field)), escaped(meanings[key]))
        for key, field in model.model_fields.items()
        # A table of its own.
        if not _is_model(field.annotation)
    ]
    return table(("key", "type", "default", "meaning"), rows)


def _type(schema: dict[str, Any], field: FieldInfo) -> str:
    if "enum" in schema:
        return ", ".join(code(toml(each)) for each in schema["enum"])
    kind = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "true or false",
        "array": "list of tables",
        "object": "table",
    }.get(schema.get("type", ""), "number or table")
    return ", ".join(
        [kind, *(escape(each.replace(">=", "≥").replace("<=", "≤")) for each in bounds_of(field))]
    )


def _default(field: FieldInfo) -> str | None:
    if field.is_required():
        return None
    return toml(field.get_default(call_default_factory=True, validated_data={}))


def _model_in(annotation: Any) -> type[BaseModel]:
    if _is_model(annotation):
        found: type[BaseModel] = annotation
        return found
    [found] = [each for each in get_args(annotation) if _is_model(each)]
    return found


def _is_model(annotation: Any) -> bool:
    return inspect.isclass(annotation) and issubclass(annotation, BaseModel)
