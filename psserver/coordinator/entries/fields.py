"""What can be written to the log, and how its values look in JSON."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

from psserver.policies.values import value


@value
class Fields:
    """What can be written to the log: an entry, or a part of one."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """Without `i` and `t`. Fields that are None are left out; NaN and Inf become null."""
        return {"kind": self.kind} | self._fields()

    def _fields(self) -> dict[str, Any]:
        found = {}
        for name in field_names(type(self)):
            value = getattr(self, name)
            # Nearly all values are these; a run has millions.
            if type(value) in (str, int):
                found[name] = value
            elif value is not None:
                found[name] = plain(value)
        return found


def field_names(kind: type[Fields]) -> tuple[str, ...]:
    """Of what can be written to the log, in that order. Looked up once per kind."""
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = tuple(field.name for field in fields(kind))
    return names


_NAMES: dict[type[Fields], tuple[str, ...]] = {}


def plain(value: Any) -> Any:
    """What JSON has for a field's value: NaN and infinity become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Fields):
        return value._fields()
    return dict(value) if isinstance(value, Mapping) else value
