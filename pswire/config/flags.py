"""Fields of a section that are command-line options, too: the one declaration of an option.

A field has the type, the range and the default. The text under it is its meaning in the documents and in ``--help``. A
`Flag` among its annotations names the commands. `pswire.command.options` makes the options.
"""

import ast
import inspect
import sys
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

SERVER: Final = "ps-server"
WORKER: Final = "ps-worker"
RUN: Final = "ps-lab run"
# Any command that connects, or that listens (`security_options`, `insecure_option`).
CONNECTING: Final = "connecting"
LISTENING: Final = "listening"


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of `commands`.

    `name`: without the leading dashes; default: the field's name. `metavar`: stands for the value in ``--help``.
    `about`: replaces the meaning there.
    """

    commands: tuple[str, ...]
    name: str = ""
    metavar: str | None = None
    about: str = ""


def flag_of(field: "FieldInfo", command: str | None = None) -> Flag | None:
    """Return the field's option of the command (or of any command), or None."""
    flags = (each for each in field.metadata if isinstance(each, Flag))
    return next((each for each in flags if command is None or command in each.commands), None)


def bounds_of(field: "FieldInfo") -> list[str]:
    """Return bounds as text, such as [">= 1", "<= 65536"]; those too large to matter are left out."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    found = ((sign, getattr(each, key, None)) for each in field.metadata for key, sign in signs.items())
    return [f"{sign} {number(bound)}" for sign, bound in found if bound is not None and abs(bound) < 1e9]


def number(value: float) -> str:
    """Format a number without a needless decimal point: 10 for 10.0."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def kind_of(field: "FieldInfo") -> tuple[Any, tuple[str, ...]]:
    """Return the type of a value, and the words that may replace it: for example (float, ("auto",))."""
    hint = field.annotation
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = tuple(word for part in parts if get_origin(part) is Literal for word in get_args(part))
    kinds = [part for part in parts if get_origin(part) is not Literal and part is not NoneType]
    kind = kinds[0] if kinds else str
    return get_args(kind)[0] if get_origin(kind) is Annotated else get_origin(kind) or kind, words


def meanings_of(model: "type[BaseModel]") -> dict[str, str]:
    """Return the text under each field, including fields of base classes."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if hasattr(base, "model_fields") and not base.__module__.startswith("pydantic"):
            found |= _texts(base.__module__).get(base.__qualname__, {})
    return found


@cache
def _texts(module: str) -> dict[str, dict[str, str]]:
    """Return a module's texts by class and field; empty if the source is not installed, so options have no help."""
    try:
        classes = ast.parse(inspect.getsource(sys.modules[module])).body
    except OSError:
        return {}
    found: dict[str, dict[str, str]] = {}
    for made in classes:
        if isinstance(made, ast.ClassDef):
            for field, text in zip(made.body, made.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                        meaning = inspect.cleandoc(str(text.value.value))
                        found.setdefault(made.name, {})[field.target.id] = meaning
    return found
