"""YAML of dicts, lists, strings, integers and booleans, valid for readers of YAML 1.1 and 1.2."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
# Words that YAML 1.1 does not read as strings.
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
# Line ends or invalid characters in YAML, which JSON does not escape.
_ODD = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
_LITERAL = re.compile(r"[ -~\n]*")


def text_of(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return all documents, each after a line "---"."""
    return "".join("".join(f"{line}\n" for line in ("---", *_mapping(document, 0))) for document in documents)


def _mapping(table: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, value in table.items():
        head, *rest = _value(value, depth)
        yield f"{'  ' * depth}{_scalar(key)}:{head}"
        yield from rest


def _sequence(entries: Sequence[Any], depth: int) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, Mapping) and entry:
            first, *rest = _mapping(entry, depth + 1)
            yield f"{'  ' * depth}- {first.lstrip(' ')}"
            yield from rest
        else:
            yield f"{'  ' * depth}- {_scalar(entry)}"


def _value(value: Any, depth: int) -> list[str]:
    """Return the text after a key's colon, and the lines below it."""
    if isinstance(value, Mapping) and value:
        return ["", *_mapping(value, depth + 1)]
    if isinstance(value, list | tuple) and value:
        return ["", *_sequence(value, depth)]
    if isinstance(value, str) and _is_block(value):
        indent = "  " * (depth + 1)
        return [" |", *(f"{indent}{line}" if line else "" for line in value.removesuffix("\n").split("\n"))]
    return [f" {_scalar(value)}"]


def _is_block(text: str) -> bool:
    """Whether a literal block can represent the text."""
    one_end = text.endswith("\n") and not text.endswith("\n\n")
    return one_end and text.count("\n") > 1 and text[0] not in " \n" and _LITERAL.fullmatch(text) is not None


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping | list | tuple):
        assert not value, "nested lists have no form here"
        return "{}" if isinstance(value, Mapping) else "[]"
    assert isinstance(value, str), f"no form for {value!r}"
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return _ODD.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
