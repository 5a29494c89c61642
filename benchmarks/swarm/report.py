"""Many workers: the table, the picture and the file of one run."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from rich.table import Table

from benchmarks.report.tables import number
from benchmarks.swarm.cells import Measured
from benchmarks.swarm.coordinator import Decided
from pslab.runs.report import COLOURS

FORMAT = 1
MIB, KB = 2**20, 1e3
LINES = {1: "-", 2: "--"}


@dataclass
class Swarmed:
    """All of one run; filled as it goes."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    cells: list[Measured] = field(default_factory=list)
    ceilings: list[Measured] = field(default_factory=list)
    decided: list[Decided] = field(default_factory=list)

    def write(self, folder: Path) -> Path:
        """`swarm.json` in `folder`."""
        record = {
            "format": FORMAT,
            "machine": self.machine,
            "settings": self.settings,
            "cells": [cell.as_json() for cell in self.cells],
            "generator_ceiling": [cell.as_json() for cell in self.ceilings],
            "coordinator_alone": [each.as_json() for each in self.decided],
        }
        path = folder / "swarm.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return path


def table(cells: Sequence[Measured]) -> Table:
    """One row per cell; milliseconds from a commit to the grant that follows it."""
    made = Table(title="many workers", title_justify="left", header_style="bold")
    headings = (
        *("policy", "sessions", "servers", "commits/s", "server CPU ms", "p50 ms", "p99 ms"),
        *("threads", "MiB", "descriptors", "over", "generator CPU ms"),
    )
    for index, heading in enumerate(headings):
        made.add_column(heading, justify="right" if index else "left")
    for cell in cells:
        made.add_row(*_row(cell))
    return made


def _row(made: Measured) -> list[str]:
    cell, cost, burst = made.cell, made.cost, made.burst
    policy = f"{cell.policy}, half the load" if cell.share else cell.policy
    start = [policy, str(cell.sessions), str(cell.servers)]
    if made.failure or cost is None:
        return [*start, "failed", *["-"] * 8]
    return [
        *start,
        _shown(made.rate),
        _shown(made.server_ms),
        _shown(_ms(burst["p50"])),
        _shown(_ms(burst["p99"])),
        str(cost.threads),
        _shown(cost.rss / MIB),
        str(cost.descriptors),
        ", ".join(sorted(made.links)) or "socket",
        _shown(made.generator_ms),
    ]


def failures(cells: Sequence[Measured]) -> list[str]:
    """A sentence per cell that failed, and per cell that lost workers on the way."""
    said = [f"{made.cell.name}: {made.failure}" for made in cells if made.failure]
    for made in cells:
        lost = made.burst.get("lost", 0)
        if lost:
            said.append(f"{made.cell.name}: {lost} workers were lost: {made.burst['losses']}")
    return said


def per_session(cells: Sequence[Measured]) -> list[str]:
    """What one more idle worker costs the servers in memory: the difference between the least and the most workers."""
    found = []
    kinds = dict.fromkeys((made.cell.policy, made.cell.servers) for made in cells)
    for policy, servers in kinds:
        group = [
            made
            for made in cells
            if (made.cell.policy, made.cell.servers, made.cell.share) == (policy, servers, 0.0)
        ]
        known = [(made.cell.sessions, made.cost.rss_joined) for made in group if made.cost is not None]
        if len(known) < 2 or min(known)[0] == max(known)[0]:
            continue
        (few, little), (many, much) = min(known), max(known)
        each = (much - little) / (many - few) / KB
        found.append(
            f"{policy}, servers: {servers}: {number(each)} kB of memory per joined worker ({few} to {many})"
        )
    return found


def ceilings(cells: Sequence[Measured]) -> Table:
    """What the generator reaches against an echo."""
    made = Table(
        title="the generator's own ceiling, against an echo", title_justify="left", header_style="bold"
    )
    for heading in ("sessions", "commits/s", "generator CPU ms", "echo CPU ms", "p99 ms"):
        made.add_column(heading, justify="right")
    for cell in cells:
        if cell.failure:
            made.add_row(str(cell.cell.sessions), "failed", "-", "-", "-")
        else:
            shown = (cell.rate, cell.generator_ms, cell.server_ms, _ms(cell.burst["p99"]))
            made.add_row(str(cell.cell.sessions), *map(_shown, shown))
    return made


def alone(decided: Sequence[Decided]) -> Table:
    """The coordinator without servers."""
    made = Table(title="the coordinator alone", title_justify="left", header_style="bold")
    for index, heading in enumerate(("policy", "sessions", "CPU us per commit", "log entries per commit")):
        made.add_column(heading, justify="right" if index else "left")
    for each in decided:
        made.add_row(
            each.policy, str(each.sessions), number(each.microseconds), number(each.entries_per_commit)
        )
    return made


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _shown(value: float | None) -> str:
    return "-" if value is None else number(value)


# The picture

Value = Callable[[Measured], float | None]

PANELS: tuple[tuple[str, Value, float], ...] = (
    ("commits per second", lambda made: made.rate, 0.0),
    ("CPU ms per commit: server", lambda made: made.server_ms, 0.0),
    ("ms from commit to grant: 99th percentile", lambda made: _ms(made.burst.get("p99")), 0.0),
    ("the same, at half the load", lambda made: _ms(made.burst.get("p99")), 0.5),
    ("server threads", lambda made: None if made.cost is None else made.cost.threads, 0.0),
    ("server memory, MiB", lambda made: None if made.cost is None else made.cost.rss / MIB, 0.0),
)


def draw(swarmed: Swarmed, path: Path, title: str) -> bool:
    """A PNG: each cost by the number of workers. False when nothing was measured."""
    cells = [made for made in swarmed.cells if made.cost is not None]
    if not cells:
        return False
    panels = [panel for panel in PANELS if any(made.cell.share == panel[2] for made in cells)]
    figure = Figure(figsize=(5 * ((len(panels) + 1) // 2), 7.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, (len(panels) + 1) // 2, squeeze=False)
    handles: dict[str, Any] = {}
    for axes, (name, value, share) in zip(grid.flat, panels, strict=False):
        _panel(axes, name, [made for made in cells if made.cell.share == share], value, handles)
        if value is PANELS[0][1]:
            _line(axes, "generator against an echo", swarmed.ceilings, value, "#888888", ":", handles)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.legend(handles.values(), handles, loc="outside lower left", ncols=4, frameon=False)
    figure.savefig(path)
    return True


def _panel(axes: Any, name: str, cells: Sequence[Measured], value: Value, handles: dict[str, Any]) -> None:
    policies = list(dict.fromkeys(made.cell.policy for made in cells))
    for policy, colour in zip(policies, COLOURS * 2, strict=False):
        for servers in sorted({made.cell.servers for made in cells}):
            group = [made for made in cells if (made.cell.policy, made.cell.servers) == (policy, servers)]
            label = policy if servers == 1 else f"{policy}, {servers} servers"
            _line(axes, label, group, value, colour, LINES.get(servers, ":"), handles)
    axes.set_title(name, loc="left", fontsize=11)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted({made.cell.sessions for made in cells})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel("workers")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _line(
    axes: Any,
    label: str,
    cells: Sequence[Measured],
    value: Value,
    colour: str,
    style: str,
    handles: dict[str, Any],
) -> None:
    points = [(made.cell.sessions, value(made)) for made in cells if made.burst]
    known = sorted((sessions, found) for sessions, found in points if found)
    if known:
        (line,) = axes.plot(
            *zip(*known, strict=True), color=colour, linestyle=style, marker="o", markersize=4
        )
        handles.setdefault(label, line)
