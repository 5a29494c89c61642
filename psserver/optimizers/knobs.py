"""Knobs: the numbers a user may set, declared once as fields of a dataclass.

A rule or a schedule is a frozen dataclass whose fields are made by `number`,
`integer`, `flag`, `numbers` and `integers`. From that one declaration come
the check of a configuration, its resolved form and the text of ``--help``.
"""

import dataclasses
import difflib
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from psserver.optimizers.errors import OptimizerError

Kind = Literal["number", "integer", "flag", "numbers", "integers"]
Made = TypeVar("Made")

LARGEST_NUMBER = float(np.finfo(np.float32).max)
LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that a knob takes. Bounds hold after rounding to float32, which is what computes."""

    kind: Kind
    doc: str
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    @property
    def text(self) -> str:
        """The domain in words: ``a number >= 0 and < 1``."""
        if self.kind == "flag":
            return "true or false"
        noun = {
            "number": "a number",
            "integer": "a whole number",
            "numbers": "a list of numbers",
            "integers": "a list of whole numbers",
        }[self.kind]
        pairs = ((">=", self.at_least), (">", self.above), ("<=", self.at_most), ("<", self.below))
        bounds = " and ".join(f"{sign} {bound:g}" for sign, bound in pairs if bound is not None)
        each = ", each" if self.kind in ("numbers", "integers") else ""
        return f"{noun}{each} {bounds}" if bounds else noun

    def check(self, where: str, value: object) -> Any:
        """Return `value` as a plain bool, int, float or tuple; raise OptimizerError outside the domain."""
        if self.kind == "flag":
            checked: Any = value if isinstance(value, bool) else None
        elif self.kind in ("number", "integer"):
            checked = self._scalar(value)
        else:
            entries = [self._scalar(entry) for entry in value] if isinstance(value, (list, tuple)) else [None]
            checked = None if None in entries else tuple(entries)
        if checked is None:
            raise OptimizerError(f"{where} must be {self.text}, got {reprlib.repr(value)}{self._hint(value)}")
        return checked

    def _scalar(self, value: object) -> int | float | None:
        whole = self.kind in ("integer", "integers")
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            return None
        plain: int | float = int(value) if isinstance(value, (int, np.integer)) else float(value)
        # Compared before a conversion to float: a huge int must not overflow. NaN fails every comparison.
        if not abs(plain) <= (LARGEST_INTEGER if whole else LARGEST_NUMBER):
            return None
        if not self._within(np.float32(plain)) or (whole and isinstance(plain, float)):
            return None
        return plain if whole else float(plain)

    def _within(self, value: np.float32) -> bool:
        return bool(
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def _hint(self, value: object) -> str:
        """Say when only the rounding to float32 put a number outside."""
        if self.kind != "number" or not isinstance(value, float) or not abs(value) <= LARGEST_NUMBER:
            return ""
        bounds = (self.above, self.below)
        rounded = float(np.float32(value))
        return f" (which is {rounded:g} in float32)" if rounded in bounds and value not in bounds else ""


@dataclass(frozen=True, slots=True)
class Knob:
    """One knob as ``--help`` shows it. `default` is None when there is none."""

    name: str
    default: object
    required: bool
    domain: str
    doc: str

    def __str__(self) -> str:
        default = "required" if self.required else f"default {_plain(self.default)}"
        return f"{self.name}: {self.doc}; {self.domain} ({default})"


def number(
    default: object = MISSING,
    *,
    doc: str,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Any:
    """A field that holds a float."""
    return _field(default, Domain("number", doc, at_least, above, at_most, below))


def integer(default: object = MISSING, *, doc: str, at_least: int) -> Any:
    """A field that holds an int."""
    return _field(default, Domain("integer", doc, at_least))


def flag(default: bool, *, doc: str) -> Any:
    """A field that holds a bool."""
    return _field(default, Domain("flag", doc))


def numbers(*, doc: str, at_least: float) -> Any:
    """A required field that holds a tuple of floats."""
    return _field(MISSING, Domain("numbers", doc, at_least))


def integers(*, doc: str, at_least: int) -> Any:
    """A required field that holds a tuple of ints."""
    return _field(MISSING, Domain("integers", doc, at_least))


def _field(default: object, domain: Domain) -> Any:
    if default is MISSING:
        return dataclasses.field(metadata={"domain": domain})
    return dataclasses.field(default=default, metadata={"domain": domain})


def knobs_of(made: type[Any]) -> tuple[Knob, ...]:
    """The knobs of a rule or schedule class, in order of declaration."""
    return tuple(
        Knob(
            field.name,
            None if field.default is MISSING else field.default,
            field.default is MISSING,
            field.metadata["domain"].text,
            field.metadata["domain"].doc,
        )
        for field in dataclasses.fields(made)
    )


def make(made: type[Made], where: str, table: Mapping[str, object], also: Iterable[str] = ()) -> Made:
    """Build a `made` from `table`; `where` names it in errors, `also` are keys its caller reads.

    Raises OptimizerError for an unknown key (naming the nearest), a missing
    one, or a value outside its domain.
    """
    fields: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(made)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            raise OptimizerError(unknown(f"{where}: knob", key, [*also, *fields]))
    for key, field in fields.items():
        if field.default is MISSING and key not in table:
            raise OptimizerError(f"{where}: {key} is missing; give {field.metadata['domain'].text}")
    return made(**{key: fields[key].metadata["domain"].check(f"{where}: {key}", table[key]) for key in table})


def settings(made: object) -> dict[str, object]:
    """The knobs of a built rule or schedule, JSON-able; an optional knob left out (None) stays out."""
    values = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}  # type: ignore[arg-type]
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in values.items()
        if value is not None
    }


def unknown(what: str, got: object, known: Iterable[str]) -> str:
    """The message for a name that is not among `known`."""
    known = list(known)
    near = difflib.get_close_matches(str(got), known, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return f"{what} {got!r} is not known; {guess}Known: {', '.join(known)}"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
