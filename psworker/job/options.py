"""A job's options: the annotated attributes of its class, checked against their defaults."""

from __future__ import annotations

from collections.abc import Mapping

from pswire.nearest import did_you_mean
from psworker.job.errors import JobError

_ABSENT = object()


def declared(cls: type, base: type) -> dict[str, object]:
    """Name -> default of every public annotated attribute below `base`; `_ABSENT` where it has none."""
    found: dict[str, object] = {}
    for part in reversed(cls.__mro__):
        if part in base.__mro__:
            continue
        for name, annotation in part.__dict__.get("__annotations__", {}).items():
            if not name.startswith("_") and "ClassVar" not in str(annotation):
                found[name] = getattr(cls, name, _ABSENT)
    return found


def checked(cls: type, base: type, options: Mapping[str, object]) -> dict[str, object]:
    """`options` with every value fitted to its default's type.

    Raises JobError on an unknown name (naming the nearest) and on a value of
    another type than the default's.
    """
    known = declared(cls, base)
    for name in options:
        if name not in known:
            raise JobError(unknown_option(cls.__name__, name, list(known)))
    return {name: _fit(cls, name, known[name], value) for name, value in options.items()}


def require_all(cls: type, base: type, options: Mapping[str, object]) -> None:
    """Raise JobError when an option without a default is not among `options`."""
    for name, default in declared(cls, base).items():
        if default is _ABSENT and name not in options:
            raise JobError(f"job {cls.__name__} needs the option {name!r}: set it under [job.options]")


def unknown_option(job: str, name: str, known: list[str]) -> str:
    """The sentence for an option that a job does not have."""
    return f"job {job} has no option {name!r}{did_you_mean(name, known)}"


def _fit(cls: type, name: str, default: object, value: object) -> object:
    """`value`, or what it means where the default is a float or a tuple."""
    if default is _ABSENT or default is None:
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, float) and number:
        return float(value)  # type: ignore[arg-type]
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    same_kind = isinstance(value, bool) == isinstance(default, bool)
    if isinstance(value, type(default)) and same_kind:
        return value
    expected, got = type(default).__name__, type(value).__name__
    raise JobError(f"option {name!r} of job {cls.__name__}: expected {expected}, got {got} {value!r}")
