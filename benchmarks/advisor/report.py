"""The tables of the advisor against reality, and whether what is wanted holds. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from benchmarks.advisor.measure import SEEDS, Choice

# What is wanted: benchmarks/advisor/README.md.
REGRET, COVERAGE = 0.15, 0.7
HEAD = (
    "choice",
    "measured as",
    "s to the goal",
    "of the fastest",
    "ratio to `sync`",
    "predicted",
    "80 % interval",
    "inside",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One choice: what was predicted, NaN where the advice does not name it, and what was measured."""

    label: str
    roles: tuple[str, ...]
    predicted: float
    low: float
    high: float
    seconds: float
    deviation: float
    reached: int
    ratio: float
    regret: float

    @property
    def covered(self) -> bool | None:
        """Whether the measured ratio lies in the interval; None where there is none, or it is `sync` itself."""
        if not math.isfinite(self.low) or "sync" in self.roles:
            return None
        return self.low <= self.ratio <= self.high


@dataclass(frozen=True, slots=True)
class Judgement:
    """A shape's rows, the fastest first."""

    shape: str
    rows: tuple[Row, ...]

    def of(self, role: str) -> Row:
        return next(row for row in self.rows if role in row.roles)

    def as_json(self) -> dict[str, Any]:
        return {"shape": self.shape, "rows": [asdict(row) | {"covered": row.covered} for row in self.rows]}


def judged(
    shape: str, advice: Mapping[str, Any], choices: Sequence[Choice], results: Sequence[Mapping[str, Any]]
) -> Judgement:
    """Hold an advice against results."""
    times = {
        choice.label: [each["seconds"] for each in results if each["choice"] == choice.label]
        for choice in choices
    }
    reached = {label: sum(each["reached"] for each in results if each["choice"] == label) for label in times}
    means = {label: fmean(own) for label, own in times.items()}
    sync = next(choice.label for choice in choices if "sync" in choice.roles)
    rows = []
    for choice in choices:
        said = _said(advice, choice)
        rows.append(
            Row(
                label=choice.label,
                roles=choice.roles,
                predicted=_number(said.get("ratio")),
                low=_number(said.get("low")),
                high=_number(said.get("high")),
                seconds=means[choice.label],
                deviation=stdev(times[choice.label]),
                reached=reached[choice.label],
                ratio=means[choice.label] / means[sync],
                regret=means[choice.label] / min(means.values()) - 1,
            )
        )
    return Judgement(shape, tuple(sorted(rows, key=lambda row: row.seconds)))


def _said(advice: Mapping[str, Any], choice: Choice) -> Mapping[str, Any]:
    policy = {"name": choice.policy, **choice.knobs}
    for each in advice["choices"]:
        if each["policy"] == policy and each["learning_rate"] == choice.rate:
            found: Mapping[str, Any] = each
            return found
    return {}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def verdicts(found: Sequence[Judgement]) -> list[str]:
    """Say of each of the four wishes whether it holds."""
    regrets = {each.shape: each.of("first").regret for each in found}
    good, mean = sum(regret <= REGRET for regret in regrets.values()), fmean(regrets.values())
    each_shape = ", ".join(f"`{shape}` {regret:+.0%}" for shape, regret in regrets.items())
    inside = [row.covered for each in found for row in each.rows if row.covered is not None]
    enough = bool(inside) and sum(inside) >= COVERAGE * len(inside)
    control = fmean(each.of("control").regret for each in found)
    said = [
        f"1. {_holds(good == len(found))}: the first choice is within {REGRET:.0%} of the fastest in {good} of "
        f"{len(found)} shapes ({each_shape}).",
        f"2. {_holds(enough)}: {sum(inside)} of {len(inside)} measured ratios lie in their intervals.",
        f"3. {_holds(control > mean)}: the control needs {control:.0%} more than the fastest on average, the first "
        f"choice {mean:.0%}.",
    ]
    even = next((each for each in found if each.shape == "even"), None)
    if even is not None:
        first = even.of("first").label
        said.append(f"4. {_holds(not first.startswith('async'))}: on `even` the first choice is {first}.")
    return said


def _holds(true: bool) -> str:
    return "Holds" if true else "Fails"


def markdown(found: Sequence[Judgement]) -> str:
    """Return all tables and the verdicts."""
    parts = [_table(each) for each in found]
    return "\n\n".join([*parts, "\n".join(verdicts(found))]) + "\n"


def _table(judgement: Judgement) -> str:
    lines = [
        f"**`{judgement.shape}`**",
        "",
        f"| {' | '.join(HEAD)} |",
        f"|{'---|' * len(HEAD)}",
    ]
    for row in judgement.rows:
        missed = "" if row.reached == len(SEEDS) else f" ({row.reached} of {len(SEEDS)} reached it)"
        cells = (
            f"`{row.label}`",
            ", ".join(dict.fromkeys(row.roles)),
            f"{row.seconds:.2f} ± {row.deviation:.2f}{missed}",
            f"{1 + row.regret:.2f}",
            f"{row.ratio:.2f}",
            f"{row.predicted:.2f}" if math.isfinite(row.predicted) else "",
            f"{row.low:.2f} to {row.high:.2f}" if math.isfinite(row.low) else "",
            {None: "", True: "yes", False: "no"}[row.covered],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
