"""Distributions of times: "exponential(0.05)", "2 * gamma(100, 0.01)", "trace(steps.csv)". All times in seconds.

Names and parameters are those of the straggler models in the literature: exponential and shifted exponential, Pareto
(Dutta et al. 2018), gamma (Hakimi et al. 2019), log-normal. Real and simulated workers draw the same numbers in the
same order: both use `stream`.
"""

import csv
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pswire.config.toml import TooLong, read_text
from pswire.domains import Bound, Domain, named
from pswire.knobs import Knob, KnobError
from pswire.nearest import did_you_mean, nearest

Draw = Callable[[], float]

# The limit of a factor, a parameter and a mean, in seconds: thirty years, as for all times of an experiment. Beyond it
# a tick of the clock is lost in rounding, and a simulation does not end.
LARGEST = 1e9
# The limit of a drawn time: beyond it, sums of times would overflow.
LONGEST = 1e100
# The column of a trace with the times, and the number of other columns that an error names.
SECONDS, MAX_COLUMNS = "seconds", 8
# Bounds on draws of Python's generators: a normal number in standard deviations, and log(1/u) for a uniform u.
_FARTHEST_NORMAL, _FARTHEST_LOG = 12.2, 53 * math.log(2)


class DelayError(ValueError):
    """A distribution or a trace file that cannot be used. The text names the place."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A kind of distribution. `make` turns parameters into a draw; `mean` returns the expected value."""

    parameters: tuple[Knob, ...]
    make: Callable[[Random, tuple[float, ...]], Draw]
    mean: Callable[[tuple[float, ...]], float]
    # Says what is wrong with parameters that are each within range, or returns "".
    refuse: Callable[[tuple[float, ...]], str] = lambda p: ""


def _time_of(name: str, meaning: str, at_least: Bound = 0) -> Knob:
    return Knob(name, Domain("number", at_least=at_least), meaning)


def _positive(name: str, meaning: str) -> Knob:
    return Knob(name, Domain("number", above=0), meaning)


def _pareto_refuse(parameters: tuple[float, ...]) -> str:
    alpha, minimum = parameters
    return _too_long(math.log(minimum) + _FARTHEST_LOG / alpha, "take a larger alpha")


def _lognormal_refuse(parameters: tuple[float, ...]) -> str:
    mu, sigma = parameters
    return _too_long(mu + _FARTHEST_NORMAL * sigma, "take a smaller mu or sigma")


def _too_long(log_longest: float, advice: str) -> str:
    if log_longest <= math.log(LONGEST):
        return ""
    return f"may draw more than {LONGEST:g} seconds; {advice}"


def _exponential(rng: Random, mean: float) -> Draw:
    return (lambda: 0.0) if mean == 0 else (lambda: rng.expovariate(1 / mean))


def _shifted(rng: Random, p: tuple[float, ...]) -> Draw:
    extra = _exponential(rng, p[1])
    return lambda: p[0] + extra()


DISTRIBUTIONS: dict[str, Distribution] = {
    "constant": Distribution((_time_of("seconds", "the time"),), lambda rng, p: lambda: p[0], lambda p: p[0]),
    "exponential": Distribution(
        (_time_of("mean", "expected seconds"),), lambda rng, p: _exponential(rng, p[0]), lambda p: p[0]
    ),
    "shifted_exponential": Distribution(
        (_time_of("shift", "least seconds"), _time_of("mean", "expected seconds beyond the shift")),
        _shifted,
        lambda p: p[0] + p[1],
    ),
    "uniform": Distribution(
        (_time_of("low", "least seconds"), _time_of("high", "most seconds", named("low"))),
        lambda rng, p: lambda: rng.uniform(p[0], p[1]),
        lambda p: (p[0] + p[1]) / 2,
    ),
    "pareto": Distribution(
        (_positive("alpha", "shape; up to 1 the mean is infinite"), _positive("minimum", "least seconds")),
        lambda rng, p: lambda: p[1] * rng.paretovariate(p[0]),
        lambda p: p[0] * p[1] / (p[0] - 1) if p[0] > 1 else math.inf,
        _pareto_refuse,
    ),
    "gamma": Distribution(
        (_positive("shape", "k"), _positive("scale", "theta, seconds; the mean is k theta")),
        lambda rng, p: lambda: rng.gammavariate(p[0], p[1]),
        lambda p: p[0] * p[1],
    ),
    "lognormal": Distribution(
        (
            Knob("mu", Domain("number"), "mean of the logarithm of seconds"),
            _time_of("sigma", "standard deviation of the logarithm"),
        ),
        lambda rng, p: lambda: rng.lognormvariate(p[0], p[1]),
        lambda p: math.exp(p[0] + p[1] ** 2 / 2),
        _lognormal_refuse,
    ),
}

_KNOWN = (*DISTRIBUTIONS, "trace")


@dataclass(frozen=True, slots=True)
class Delay:
    """``factor * name(parameters)``. `trace`: the file of a trace, which is read on use."""

    text: str
    name: str
    parameters: tuple[float, ...] = ()
    trace: Path | None = None
    factor: float = 1.0

    @property
    def never(self) -> bool:
        """True if it is always 0, as is ``exponential(0)``. A trace is not read, so only its factor counts."""
        return self.factor == 0 or (self.trace is None and self.mean == 0)

    @property
    def mean(self) -> float:
        """The expected value in seconds; may be infinite. Raises DelayError for a bad trace."""
        if self.trace is not None:
            times = read_trace(self.trace)
            return self.factor * sum(times) / len(times)
        return self.factor * DISTRIBUTIONS[self.name].mean(self.parameters)

    def scaled(self, factor: float) -> "Delay":
        return Delay(self.text, self.name, self.parameters, self.trace, self.factor * factor)

    def draws(self, rng: Random) -> Draw:
        """Return a function that draws from this distribution, with `rng` as the only source of randomness.

        A trace is played in its own order from a random place, round and round. Raises DelayError for a bad trace.
        """
        draw = _played(self.trace, rng) if self.trace is not None else self._drawn(rng)
        factor = self.factor
        return draw if factor == 1 else lambda: factor * draw()

    def _drawn(self, rng: Random) -> Draw:
        return DISTRIBUTIONS[self.name].make(rng, self.parameters)


def stream(seed: int, worker: int, purpose: str) -> Random:
    """Return the random numbers of one worker for one purpose: the same in every engine and every run."""
    return Random(f"{seed}/{worker}/{purpose}")


def parse(text: str) -> Delay:
    """Parse a Delay. Raises DelayError saying what was expected. Reads no file."""
    whole = re.fullmatch(r"\s*(?:([^*()]+?)\s*\*\s*)?([A-Za-z_]\w*)\s*\((.*)\)\s*", text, re.DOTALL)
    if whole is None:
        raise DelayError(
            f"{text!r} is no delay: expected something like exponential(0.05) or 2 * constant(1); "
            f"known: {', '.join(_KNOWN)}"
        )
    factor_text, name, inside = whole.groups()
    factor = 1.0 if factor_text is None else _number(text, "the factor", factor_text)
    if factor < 0:
        raise DelayError(f"{text!r}: the factor must be 0 or more, got {factor:g}")
    if name == "trace":
        file = inside.strip().strip("\"'")
        if not file:
            raise DelayError(f"{text!r}: expected the name of a file, as in trace(steps.csv)")
        return Delay(text.strip(), name, trace=Path(file), factor=factor)
    if name not in DISTRIBUTIONS:
        raise DelayError(f"{text!r}: unknown distribution {name!r}{did_you_mean(name, _KNOWN)}")
    return Delay(text.strip(), name, _parameters(text, name, inside), factor=factor)


def _parameters(text: str, name: str, inside: str) -> tuple[float, ...]:
    distribution = DISTRIBUTIONS[name]
    wanted = distribution.parameters
    pieces = [piece.strip() for piece in inside.split(",")] if inside.strip() else []
    if len(pieces) != len(wanted):
        signature = f"{name}({', '.join(knob.name for knob in wanted)})"
        raise DelayError(f"{text!r}: expected {signature}, got {len(pieces)} parameters")
    found: dict[str, float] = {}
    for knob, piece in zip(wanted, pieces, strict=True):
        try:
            found[knob.name] = knob.check(repr(text), _number(text, knob.name, piece), found)
        except KnobError as error:
            raise DelayError(str(error)) from error
    values = tuple(found.values())
    if problem := distribution.refuse(values):
        raise DelayError(f"{text!r}: {problem}")
    return values


def _number(text: str, what: str, piece: str) -> float:
    try:
        value = float(piece)
    except ValueError:
        raise DelayError(f"{text!r}: {what} must be a number, got {piece.strip()!r}") from None
    if not math.isfinite(value):
        raise DelayError(f"{text!r}: {what} must be finite, got {piece.strip()}")
    if abs(value) > LARGEST:
        limit = f"at most {LARGEST:.0f}" if value > 0 else f"at least {-LARGEST:.0f}"
        raise DelayError(f"{text!r}: {what} must be {limit}, got {piece.strip()}")
    return value


# The limit of a trace: some million steps.
MAX_CHARACTERS = 2**26


def read_trace(path: Path) -> tuple[float, ...]:
    """Read the step times of a trace: one number (seconds) per line, or a CSV with a column named ``seconds``.

    Blank lines do not count. Raises DelayError naming file and line.
    """
    try:
        # Spreadsheets begin a file with a byte order mark.
        lines = read_text(path, MAX_CHARACTERS, "utf-8-sig").splitlines()
    except TooLong as error:
        raise DelayError(f"trace({path}): {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DelayError(f"trace({path}): cannot be read: {reason}") from error
    rows = [(number, _cells(line)) for number, line in enumerate(lines, start=1) if line.strip()]
    column, first = 0, 0
    if rows:
        column, first = _layout(path, *rows[0])
        rows = rows[first:]
    if not rows:
        got = "a header only" if first else "an empty file"
        raise DelayError(f"trace({path}): expected at least one number of seconds, got {got}")
    return tuple(_time(f"trace({path}), line {number}", cells, column) for number, cells in rows)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line]))]


def _layout(path: Path, number: int, cells: list[str]) -> tuple[int, int]:
    """Return, from the first row, the column of the times and the number of header rows."""
    if SECONDS in cells:
        return cells.index(SECONDS), 1
    if len(cells) == 1 and _is_number(cells[0]):
        return 0, 0
    if all(map(_is_number, cells)):
        got = f"{len(cells)} numbers and no names"
    else:
        got = ", ".join(map(repr, cells[:MAX_COLUMNS])) + (", ..." if len(cells) > MAX_COLUMNS else "")
        alike = nearest(SECONDS, cells)
        got += f"; is it {alike!r}? Then rename it" if alike else ""
    raise DelayError(
        f"trace({path}), line {number}: expected one number of seconds per line, or a header with a column "
        f"named {SECONDS!r}, got {got}"
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _time(place: str, cells: list[str], column: int) -> float:
    if column >= len(cells):
        raise DelayError(f"{place}: expected at least {column + 1} columns, got {len(cells)}")
    try:
        value = float(cells[column])
    except ValueError:
        raise DelayError(f"{place}: expected a number of seconds, got {cells[column]!r}") from None
    if not 0 <= value <= LARGEST:
        raise DelayError(f"{place}: expected a number of seconds from 0 to {LARGEST:.0f}, got {value}")
    return value


def _played(path: Path, rng: Random) -> Draw:
    times = read_trace(path)
    place = rng.randrange(len(times))

    def draw() -> float:
        nonlocal place
        value = times[place]
        place = (place + 1) % len(times)
        return value

    return draw
