"""Measured beside expected, for groups of runs: as a table, as JSON, and the curves that have a bound."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from pslab.compare.groups import Group
from pslab.display.status import finite_or_none
from pslab.theory.claims import Claim, claims_of
from pslab.theory.curves import BoundedCurve, bounded_curve
from pslab.theory.quadratics import NoTheoryError

HEAD = ("policy", "", "measured", "", "theory", "off by", "formula", "source")


def bounded(groups: Sequence[Group]) -> tuple[list[tuple[str, BoundedCurve]], list[str]]:
    """(label, curve) of the groups that have a bound, and a sentence for each that has none."""
    found, missing = [], []
    for group in groups:
        try:
            found.append((group.label, bounded_curve([run.run for run in group.runs])))
        except NoTheoryError as error:
            missing.append(f"{group.label}: {error}")
    return found, missing


def claims_by_group(groups: Sequence[Group]) -> list[tuple[str, list[Claim]]]:
    """The laws that hold for each group, and the end of its bounded curve where there is one."""
    curves = dict(bounded(groups)[0])
    return [
        (group.label, [*claims_of([run.run for run in group.runs]), *_end(curves.get(group.label))])
        for group in groups
    ]


def _end(curve: BoundedCurve | None) -> list[Claim]:
    if curve is None:
        return []
    what = "f(x_v) - f(x*)" if curve.kind == "gap" else "mean |grad f|^2"
    version = int(curve.versions[-1])
    said = f"{what}, v = {version}"
    measured, bound = float(curve.measured[-1]), float(curve.bound[-1])
    return [Claim(said, measured, "<=", bound, curve.formula, curve.source)]


def rows(label: str, claims: Sequence[Claim]) -> list[tuple[str, ...]]:
    """Cells below HEAD; a group without any law has one row that says so."""
    if not claims:
        return [(label, "no formula is known to hold", "", "", "", "", "", "")]
    return [_row(label if number == 0 else "", claim) for number, claim in enumerate(claims)]


def _row(label: str, claim: Claim) -> tuple[str, ...]:
    off = "" if claim.relation == "<=" else f"{100 * claim.excess:+.1f} %"
    if claim.relation == "<=" and claim.excess > 0:
        off = "above"
    measured, expected = (f"{value:.{claim.digits}g}" for value in (claim.measured, claim.expected))
    return label, claim.what, measured, claim.relation, expected, off, claim.formula, claim.source


def theory_tables(groups: Sequence[Group]) -> Iterator[Table]:
    """One for each group."""
    for label, claims in claims_by_group(groups):
        table = Table(
            title=Text(f"Theory: {label}"), title_justify="left", header_style="bold", box=box.SIMPLE_HEAD
        )
        for number, title in enumerate(HEAD[1:], start=1):
            table.add_column(title, justify="right" if number in (2, 4, 5) else "left", overflow="fold")
        for _, *cells in rows(label, claims):
            table.add_row(*map(Text, cells))
        yield table


def theory_json(groups: Sequence[Group]) -> dict[str, Any]:
    """Numbers that do not exist are null."""
    return {
        "event": "theory",
        "groups": [
            {
                "label": label,
                "claims": [
                    {
                        "what": claim.what,
                        "measured": finite_or_none(claim.measured),
                        "relation": claim.relation,
                        "theory": finite_or_none(claim.expected),
                        "formula": claim.formula,
                        "source": claim.source,
                    }
                    for claim in claims
                ],
            }
            for label, claims in claims_by_group(groups)
        ],
    }
