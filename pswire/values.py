"""Small immutable facts that are passed on. A commit makes about twenty of them."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make a dataclass with slots that is frozen to the type checker, but not to Python.

    Python's own frozen dataclasses take four times as long to make, because every field goes through
    ``object.__setattr__``. Values are equal if their fields are, and are hashable.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
