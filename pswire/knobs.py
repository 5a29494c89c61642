"""Knobs: values that a user may set, each declared once, as data.

Policies, optimizers and schedules are dataclasses whose fields are made by `number`, `integer`, `flag`, `word`,
`numbers` and `integers`. Where there is no class (the parameters of a distribution, the numbers of a local rule), a
tuple of `Knob` serves. Checks, error messages and descriptions all come from that one declaration. Standard library
only: pure packages may import this module.
"""

import dataclasses
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Final, TypeVar

from pswire.domains import LARGEST_SINGLE, Bound, Domain, Names, to_single
from pswire.nearest import did_you_mean

Made = TypeVar("Made")

# None may be a default, so the absence of one needs a value of its own.
REQUIRED: Final = object()


class KnobError(ValueError):
    """An unknown or missing knob, or a value out of range. The text says what was expected and what was given."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One knob. `because`: the reason for its bounds, appended to errors."""

    name: str
    domain: Domain
    meaning: str
    default: object = REQUIRED
    because: str = ""

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    def check(self, owner: str, value: object, names: Names | None = None, *, single: bool = False) -> Any:
        """Return `value` as a plain bool, str, int, float or tuple. Raises KnobError if it is outside the domain.

        `owner` begins the error, as in "policy ssp". `names`: values that formulas refer to. `single`: the value is for
        float32 arithmetic, so bounds hold after rounding to float32.
        """
        names = names or {}
        accepted = self.domain.accept(value, names, single=single)
        if accepted is None:
            hint = self._rounded(value) if single else ""
            why = f"; {self.because}" if self.because else ""
            expected = self.domain.expected(names, value)
            raise KnobError(f"{owner}: {self.name} must be {expected}, got {reprlib.repr(value)}{hint}{why}")
        return accepted

    def _rounded(self, value: object) -> str:
        """Return a hint if only the rounding to float32 put a number outside its bounds."""
        if self.domain.kind != "number" or not isinstance(value, float) or not abs(value) <= LARGEST_SINGLE:
            return ""
        bounds, rounded = (self.domain.above, self.domain.below), to_single(value)
        return f" (which is {rounded:g} in float32)" if rounded in bounds and value not in bounds else ""

    def to_json(self) -> dict[str, object]:
        """Return default (absent if there is none), kind, bounds or choices, the range in words, and the meaning."""
        default = {} if self.required else {"default": self.default}
        return {**default, **self.domain.to_json(), "range": self.domain.range, "meaning": self.meaning}

    def __str__(self) -> str:
        default = "required" if self.required else f"default {toml(self.default)}"
        return f"{self.name}: {self.meaning}; {self.domain.describe()} ({default})"


def number(
    default: object = REQUIRED,
    meaning: str = "",
    *,
    at_least: Bound | None = None,
    above: Bound | None = None,
    at_most: Bound | None = None,
    below: Bound | None = None,
    because: str = "",
) -> Any:
    """Declare a field that holds a finite float."""
    return _field(default, Domain("number", at_least, above, at_most, below), meaning, because)


def integer(
    default: object = REQUIRED,
    meaning: str = "",
    *,
    at_least: Bound | None = None,
    at_most: Bound | None = None,
    because: str = "",
) -> Any:
    """Declare a field that holds an int."""
    return _field(default, Domain("integer", at_least, at_most=at_most), meaning, because)


def flag(default: bool, meaning: str) -> Any:
    """Declare a field that holds a bool."""
    return _field(default, Domain("flag"), meaning)


def word(default: str, meaning: str, choices: Iterable[str]) -> Any:
    """Declare a field that holds one of some words."""
    return _field(default, Domain("word", choices=tuple(choices)), meaning)


def numbers(meaning: str, *, at_least: float) -> Any:
    """Declare a required field that holds a tuple of floats."""
    return _field(REQUIRED, Domain("numbers", at_least), meaning)


def integers(meaning: str, *, at_least: int) -> Any:
    """Declare a required field that holds a tuple of ints."""
    return _field(REQUIRED, Domain("integers", at_least), meaning)


def _field(default: object, domain: Domain, meaning: str, because: str = "") -> Any:
    metadata = {"domain": domain, "meaning": meaning, "because": because}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def knobs_of(made: type[Any]) -> tuple[Knob, ...]:
    """Return the knobs of a class, in the order of their declaration."""
    found = []
    for field in dataclasses.fields(made):
        if "domain" not in field.metadata:
            raise KnobError(
                f"{made.__name__}.{field.name}: a field is a knob; give it its range and meaning, as in "
                f'{field.name}: float = number(0.5, "what it does", at_least=0), or make it a ClassVar'
            )
        default = REQUIRED if field.default is MISSING else field.default
        found.append(Knob(field.name, default=default, **field.metadata))
    return tuple(found)


def read(
    made: type[Made],
    table: Mapping[str, object],
    owner: str,
    names: Names | None = None,
    *,
    also: Iterable[str] = (),
    single: bool = False,
) -> Made:
    """Return a `made` with the values of `table`, and defaults for what the table does not name.

    `owner` begins an error, as in "policy ssp". `names` are values that formulas refer to besides earlier knobs. `also`
    are keys that the caller reads itself; they are suggested for a misspelt key, too. `single`: see `Knob.check`.

    Raises KnobError for an unknown key (with the nearest known one), a missing one, or a value outside its domain. Even
    a default can be outside, if its bound depends on `names`.
    """
    knobs = knobs_of(made)
    known = [knob.name for knob in knobs]
    for key in table:
        if key not in known:
            raise KnobError(f"{owner} has no knob {key!r}{did_you_mean(str(key), [*also, *known])}")
    values: dict[str, Any] = {}
    seen = dict(names or {})
    for knob in knobs:
        if knob.required and knob.name not in table:
            raise KnobError(f"{owner}: {knob.name} is missing; give {knob.domain.describe()}")
        value = table.get(knob.name, knob.default)
        if knob.name in table or value is not None:
            value = knob.check(owner, value, seen, single=single)
        values[knob.name] = value
        if isinstance(value, int | float):
            seen[knob.name] = value
    return made(**values)


def settings(made: object) -> dict[str, object]:
    """Return the knobs of a built object, JSON-able; optional knobs that are None are left out."""
    values = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}  # type: ignore[arg-type]
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in values.items()
        if value is not None
    }


def toml(value: object) -> str:
    """Return a default as an experiment file writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    return "none" if value is None else repr(value)
