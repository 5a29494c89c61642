"""A comparison as one HTML file, without scripts and external files."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from pslab.compare.charts import figures as charts
from pslab.compare.charts.theory import bound_chart
from pslab.compare.charts.timeline import timeline_chart
from pslab.compare.expected_table import HEAD, bounded, claims_by_group, rows
from pslab.compare.group_table import columns_for, drops, measure_text, starving
from pslab.compare.groups import Goals, Group
from pslab.compare.timeline import Timeline, share_head, share_rows, timeline
from pslab.runs.folder import RunError
from pslab.runs.report import curve

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1180px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; width: 100% } th, td { padding: .35rem .6rem; text-align: right }
th:first-child, td:first-child { text-align: left } thead th { border-bottom: 2px solid #222 }
tbody tr:nth-child(even) { background: #f5f6f8 } svg { width: 100%; height: auto }
.words { font-size: .85rem } .words td, .words th { text-align: left; white-space: nowrap }
.words td:nth-child(7) { white-space: normal }
.note { color: #555 } .bad { color: #b00020 }
"""


def write_html(groups: Sequence[Group], goals: Goals, path: Path) -> None:
    """Write the page. Raises RunError if a run cannot be read, matplotlib is missing, or the file cannot be written."""
    text = page(groups, goals)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error


def page(groups: Sequence[Group], goals: Goals) -> str:
    body = [
        "<h1>Runs of a parameter server</h1>",
        _table(groups, goals),
        *(f'<p class="bad">{escape(line)}</p>' for line in starving(groups)),
        *(f"<p class=note>{escape(line)}</p>" for line in drops(groups)),
        "<h2>Training loss</h2>",
        *_loss(groups),
        "<h2>Whose work was applied</h2>",
        "<p class=note>The dashed line is an equal part. A worker far below it starves: the model hardly "
        "sees its data.</p>",
        charts.svg(charts.shares(groups)),
        *_theory(groups),
        *(part for group in groups for part in _one(group)),
    ]
    return (
        "<!doctype html>\n<html lang=en><meta charset=utf-8><title>Runs of a parameter server</title>"
        f"<style>{STYLE}</style>\n" + "\n".join(body) + "\n</html>\n"
    )


def _loss(groups: Sequence[Group]) -> list[str]:
    if not any(len(curve(measured.run).loss) for group in groups for measured in group.runs):
        return ["<p class=note>No run has one: only time was simulated, or no contribution was applied.</p>"]
    return [
        "<p class=note>Mean of the contributions of each version, smoothed. One strong line per policy; the faint "
        "ones are its other seeds.</p>",
        charts.svg(charts.loss_chart(groups)),
    ]


def _table(groups: Sequence[Group], goals: Goals) -> str:
    columns = columns_for(goals)
    head = ["policy", "runs", *(column.title for column in columns)]
    rows = [
        [group.label, str(len(group.runs)), *(measure_text(group, column) for column in columns)]
        for group in groups
    ]
    return f"<table><thead>{_row('th', head)}</thead><tbody>{''.join(_row('td', r) for r in rows)}</tbody></table>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _theory(groups: Sequence[Group]) -> list[str]:
    """Return the laws and bounds that hold for these runs, and why others do not."""
    found = claims_by_group(groups)
    curves, missing = bounded(groups)
    body = "".join(_row("td", row) for label, claims in found for row in rows(label, claims))
    return [
        "<h2>Measured and theory</h2>",
        "<p class=note>= is the limit of a long run, &lt;= a bound. Measured from the first grant until the first "
        "worker has no more data.</p>",
        f"<table class=words><thead>{_row('th', HEAD)}</thead><tbody>{body}</tbody></table>",
        *([charts.svg(bound_chart(curves))] if curves else []),
        *(f"<p class=note>No bound is drawn for {escape(line)}.</p>" for line in missing),
    ]


def _one(group: Group) -> list[str]:
    """Return the section about the group's first run."""
    run = group.runs[0].run
    found = timeline(run)
    lines = share_rows(found)
    body = "".join(_row("td", line) for line in lines)
    table = f"<table><thead>{_row('th', share_head(found))}</thead><tbody>{body}</tbody></table>"
    return [
        f"<h2>{escape(group.label)}</h2>",
        f"<p class=note>Run {escape(str(run.path))}. {_legend(found)}</p>",
        charts.svg(timeline_chart([group])),
        *([table] if lines else []),
        _staleness(group),
    ]


def _staleness(group: Group) -> str:
    found = group.runs[0].run.summary
    ages = found.histogram
    if len(ages) == 1 and len(found.staleness) > charts.MANY:
        return f"<p class=note>Everything that was applied had staleness {next(iter(ages))}.</p>"
    return charts.svg(charts.staleness([group]))


def _legend(found: Timeline) -> str:
    """Return a sentence about what the timeline shows."""
    if not found.reported:
        return (
            "When each worker held a ticket, from grant to commit (pulling, computing and pushing), and its fate; a "
            "gap is waiting."
        )
    return (
        "When each worker computed, communicated and waited. Receiving is waiting for the weights, sending the rest "
        "between grant and commit. A gradient that is summed in a fixed order waits for its turn. Wasted is the time "
        "of a ticket that was cancelled or abandoned. A line marks an applied contribution, a cross a dropped one. The "
        "table is of the whole run."
    )
