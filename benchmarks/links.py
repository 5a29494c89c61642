"""Steps over shaped links: the time that the payloads of a step need on the link, and what each peer takes of it."""

from collections.abc import Callable, Sequence
from typing import Any

import click
from rich.table import Table

from benchmarks import kinds
from benchmarks.kinds import LABELS, TF
from benchmarks.loads import Load
from benchmarks.report import headed, number
from benchmarks.rounds import Row
from benchmarks.samples import Samples
from pswire.model.plan import make_plan
from pswire.model.variables import VariableSpec
from pswire.transport.wire import wire_named
from tests.machines.network import bits_per_second, reason_against

# A peer that takes less than this share of the floor was not measured on that link.
LEAST_SHARE = 0.95


def link_option(help: str) -> Callable[[Any], Any]:
    """The option `--link RATE`, refused where this process can shape no links."""
    return click.option("--link", metavar="RATE", callback=_rate, help=help)


def _rate(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        try:
            bits_per_second(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        reason = reason_against()
        if reason is not None:
            raise click.ClickException(reason)
    return text


class NotShaped(RuntimeError):
    """A peer was faster than its link: what was measured says nothing."""


def floor(load: Load, name: str, payload_rate: float) -> float:
    """Seconds that the link alone needs for one step of each worker, at `payload_rate` bytes per second.

    One worker uses one direction after the other; several may use both at once.
    """
    wire = wire_named({**kinds.OURS, **kinds.CODECS}.get(name, ("", "float32"))[1])
    plan = make_plan([VariableSpec(f"v{n}", shape) for n, shape in enumerate(load.shapes)], load.servers)
    up = sum(wire.up.size(shard) for shard in plan.shards)
    # A worker of the benchmark is one version behind the server, which sends it one change.
    down = sum((wire.deltas or wire.down).size(shard) for shard in plan.shards)
    each = max(up, down) if load.workers > 1 else up + down
    return each * load.workers / payload_rate


def seconds(row: Row, name: str) -> Samples:
    """Of one step of one worker."""
    return Samples(tuple(row.load.workers / rate for rate in row.rate(name).values))


def table(rate: str, payload_rate: float, rows: Sequence[Row]) -> Table:
    """Seconds of a step beside the floor, and the multiple of TensorFlow's speed. Raises NotShaped."""
    made = headed(
        f"steps over links of {rate}",
        *("load", "peer", "s a step", "spread", "floor s", "share of the link", f"x {LABELS[TF]}"),
        left=2,
    )
    for row in rows:
        for name in row.bursts:
            took, least = seconds(row, name), floor(row.load, name, payload_rate)
            if took.median < LEAST_SHARE * least:
                raise NotShaped(
                    f"{LABELS[name]}, {row.load.name}: expected at least {least:.3g} s a step on a link of {rate}, "
                    f"got {took.median:.3g} s"
                )
            multiple = number(row.ratio(name, TF).median) if TF in row.bursts else "-"
            share = f"{least / took.median:.2f}"
            made.add_row(
                row.load.name,
                LABELS[name],
                f"{took.median:.3g}",
                f"±{took.spread:.0%}",
                f"{least:.3g}",
                share,
                multiple,
            )
    return made
