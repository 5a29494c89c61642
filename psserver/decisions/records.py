"""Records of the decision log: fields declared once, from which JSON and its strict reading follow.

A record is a class with `@record` whose fields are made by `about`. A field is a text, whole number (never negative),
number, truth value, list of texts, table, or list of other records. A field with a default is written only if its value
differs from it.
"""

import json
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from json.encoder import encode_basestring_ascii
from typing import (
    Any,
    ClassVar,
    Final,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from pswire.domains import LARGEST_INTEGER, in_range

T = TypeVar("T")
R = TypeVar("R", bound="LogRecord")

# Decimals of times in seconds.
MICROSECONDS: Final = 6
# Seconds that a time can be: arithmetic with it stays exact to a second, and nanoseconds of it finite.
MOST_SECONDS: Final = 1e15


def about(
    text: str, *, default: Any = MISSING, always: bool = False, null: bool = False, digits: int = 0
) -> Any:
    """Declare a field; `text` describes it in a line, with its unit.

    `default`: None, or an empty value or 0. `always`: write the field even if it has its default. `null`: JSON may have
    null, which stands for NaN. `digits`: decimals of a number in JSON; 0 for all.
    """
    return field(default=default, metadata={"text": text, "always": always, "null": null, "digits": digits})


@dataclass_transform(frozen_default=True, field_specifiers=(about,))
def record(cls: type[T]) -> type[T]:
    """Make `cls` a record: a `pswire.values.value` with `kind`, the name of the class in lower case."""
    made = dataclass(slots=True, unsafe_hash=True)(cls)
    made.kind = made.__name__.lower()  # type: ignore[attr-defined]
    return made


class FieldError(ValueError):
    """A JSON value does not fit its field. The text says what was expected and what was found."""


@record
class LogRecord:
    """The base of all records."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of this record; NaN and infinity become null."""
        return {"kind": self.kind} | _plain_fields(self)


class Field(NamedTuple):
    """A declared field."""

    name: str
    hint: Any
    text: str
    # MISSING if the field is required.
    default: Any
    always: bool
    digits: int
    # Reads the value from JSON. Raises FieldError.
    read: Callable[[Any], Any]
    # The kind of record in a list; None for other fields.
    inner: type[LogRecord] | None

    @property
    def noun(self) -> str:
        """The type in words."""
        names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
        origin, inner = get_origin(self.hint), get_args(self.hint)
        if origin in (Union, types.UnionType):
            return next((names[each] for each in inner if each in names), "object")
        if origin is tuple:
            return "list of texts" if inner[0] is str else f"list of {inner[0].kind}s"
        return names.get(self.hint, "object")

    @property
    def absent(self) -> str:
        """The meaning of its absence from JSON, if it may be absent."""
        if isinstance(self.default, (bool, float)):
            return str(self.default).lower()
        return "none"

    @property
    def omits(self) -> bool:
        """True if JSON leaves it out when it has its default."""
        return self.default is not MISSING and not self.always


_DECLARED: dict[Any, tuple[Field, ...]] = {}
_WRITERS: dict[Any, Callable[[Any], str]] = {}


def declared(kind: type[LogRecord]) -> tuple[Field, ...]:
    """Return the fields of a kind of record, in order."""
    if kind in _DECLARED:
        return _DECLARED[kind]
    hints = get_type_hints(kind)
    found = []
    for each in fields(kind):
        rules, hint = each.metadata, hints[each.name]
        read = _reader(hint, null=rules["null"])
        inner = get_args(hint)[0] if read is _objects else None
        facts = (rules["text"], each.default, rules["always"], rules["digits"])
        found.append(Field(each.name, hint, *facts, read, inner))
    _DECLARED[kind] = tuple(found)
    return _DECLARED[kind]


# Writing


def _plain_fields(made: LogRecord) -> dict[str, Any]:
    found = {}
    for each in declared(type(made)):
        value = getattr(made, each.name)
        if value is None or (each.omits and not value and each.default is not None):
            continue
        if each.digits and type(value) is float:
            value = round(value, each.digits)
        found[each.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """Return a field's value as JSON has it: NaN and infinity become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, LogRecord):
        return _plain_fields(value)
    return dict(value) if isinstance(value, Mapping) else value


# Shared by all writers. Records have no cycles, and NaN is not JSON.
ENCODER: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False)


def line_of(index: int, t: float, made: LogRecord) -> str:
    """Return the line of the log: ``json.dumps({"i": index, "t": round(t, 6), **made.to_json()})`` without spaces.

    It takes a tenth of that time, since a commit leaves three or four lines. Raises ValueError for what is not JSON.
    """
    t = round(t, MICROSECONDS)
    kind = type(made)
    fields_of = _WRITERS.get(kind) or _writer(kind)
    at = f"{t!r}" if type(t) is float and t - t == 0.0 else value_text(t)
    return f'{{"i":{index},"t":{at},"kind":"{made.kind}"{fields_of(made)}}}'


def value_text(value: Any) -> str:
    """Return one value as JSON, without spaces; NaN and infinity become null. Raises ValueError if it is not JSON."""
    kind = type(value)
    if kind is int:
        return repr(value)
    if kind is float:
        # The difference of NaN or infinity to itself is not zero.
        return repr(value) if value - value == 0.0 else "null"
    if kind is str:
        return encode_basestring_ascii(value)
    if value is None:
        return "null"
    if kind is tuple:
        return f"[{','.join([value_text(each) for each in value])}]"
    if isinstance(value, LogRecord):
        # A nested record has no kind of its own.
        return f"{{{(_WRITERS.get(kind) or _writer(kind))(value)[1:]}}}"
    return ENCODER.encode(_plain(value))


def _writer(kind: type[LogRecord]) -> Callable[[Any], str]:
    """Compile the writer of a kind's fields, each after a comma, as `dataclasses` compile an `__init__`."""
    lines, texts = ["def write(made):"], []
    names: dict[str, Any] = {"quoted": encode_basestring_ascii, "text": value_text}
    for number, each in enumerate(declared(kind)):
        value, text = f"v{number}", f"s{number}"
        lines.append(f"    {value} = made.{each.name}")
        if each.digits:
            lines.append(f"    if type({value}) is float: {value} = round({value}, {each.digits})")
        absent = f"{value} is None"
        if each.omits and each.default is not None:
            absent = f"not {value}"
        lines += [
            f"    if {absent}: {text} = ''",
            f"    elif type({value}) is int: {text} = f',\"{each.name}\":{{{value}}}'",
            f"    elif type({value}) is str: {text} = ',\"{each.name}\":' + quoted({value})",
            f"    elif type({value}) is float and {value} - {value} == 0.0: {text} = f',\"{each.name}\":{{{value}!r}}'",
            f"    else: {text} = ',\"{each.name}\":' + text({value})",
        ]
        texts.append(f"{{{text}}}")
    lines.append(f"    return f'{''.join(texts)}'")
    exec("\n".join(lines), names)  # noqa: S102  (of the names of our own fields)
    made = _WRITERS[kind] = names["write"]
    return made  # type: ignore[no-any-return]


# Reading


def from_json(kind: type[R], data: Mapping[str, Any], where: str) -> R:
    """Make a record from a JSON object, which may have more keys, so that a newer server's log stays readable.

    `where` names the object in messages. Raises FieldError for a field that is missing or of another type.
    """
    values = {}
    for each in declared(kind):
        if each.name in data:
            try:
                values[each.name] = each.read(data[each.name])
            except FieldError as error:
                raise FieldError(f"{where}: {each.name} should be {error}") from None
            if each.inner is not None:
                parts = enumerate(values[each.name])
                values[each.name] = tuple(
                    [
                        from_json(each.inner, part, f"{each.inner.kind} {n} of the {where}")
                        for n, part in parts
                    ]
                )
        elif not each.omits:
            raise FieldError(f"{where} has no {each.name!r}")
    return kind(**values)


def whole(value: Any) -> int:
    """Read a whole number. Raises FieldError."""
    if type(value) is int and 0 <= value <= LARGEST_INTEGER:
        return value
    raise _expected(f"a whole number from 0 to {LARGEST_INTEGER}", value)


def number(value: Any) -> float:
    """Read a finite number. Raises FieldError."""
    if in_range(value):
        return value  # type: ignore[no-any-return]
    raise _expected("a finite number", value)


def seconds(value: Any) -> float:
    """Read a time, in seconds since a job began. Raises FieldError."""
    if in_range(value, 0, MOST_SECONDS):
        return value  # type: ignore[no-any-return]
    raise _expected(f"seconds from 0 to {MOST_SECONDS:g}", value)


def text(value: Any) -> str:
    """Read a text. Raises FieldError."""
    if type(value) is str:
        return value
    raise _expected("a text", value)


def _number_or_null(value: Any) -> float:
    return math.nan if value is None else _or_null(number)(value)


def _truth(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise _expected("true or false", value)


def _table(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise _expected("an object", value)


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, list) and all(type(each) is str for each in value):
        return tuple(value)
    raise _expected("a list of strings", value)


def _objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return value
    raise _expected("a list of objects", value)


def _or_null(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def optional(value: Any) -> Any:
        try:
            return None if value is None else read(value)
        except FieldError as error:
            raise FieldError(re.sub(", got", " or null, got", str(error), count=1)) from None

    return optional


_READERS: Final[Mapping[Any, Callable[[Any], Any]]] = {int: whole, float: number, str: text, bool: _truth}


def _reader(hint: Any, *, null: bool) -> Callable[[Any], Any]:
    """Return the function that reads a field of that type."""
    if null:
        return _number_or_null
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        [some] = [each for each in inner if each is not types.NoneType]
        return _or_null(_reader(some, null=False))
    if origin is tuple:
        return _texts if inner[0] is str else _objects
    return _READERS.get(hint, _table)


def _expected(noun: str, value: Any) -> FieldError:
    try:
        text = json.dumps(value)
    except ValueError:
        # A whole number of more digits than Python writes.
        text = "a number that is too long to show"
    return FieldError(f"{noun}, got {text[:60]}")
