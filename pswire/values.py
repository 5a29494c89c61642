"""Small facts that are passed on and never changed. A commit makes about twenty of them."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A dataclass with slots that the type checker knows as frozen, and Python does not.

    Python's own frozen dataclasses take four times as long to make: every
    field goes through ``object.__setattr__``. Values are equal when their
    fields are, and have a hash.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
