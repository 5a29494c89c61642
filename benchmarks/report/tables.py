"""What was measured, as tables for a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import quantiles

from rich.table import Table
from rich.text import Text

from benchmarks.kinds import ALONE, GRPC, GRPC_TLS, LABELS, OTHER, OVER_TLS, SHM, SOCKET, SOCKET_TLS, TF
from benchmarks.loads import MB
from benchmarks.measures.connections import KINDS, PLAIN, TLS, WORKERS, Connections
from benchmarks.measures.kernels import Row as KernelRow
from benchmarks.measures.limits import MEANING
from benchmarks.measures.rounds import Row
from benchmarks.measures.samples import Samples, collected

# From this size on bandwidth is what limits a step, and a share of it means something.
LARGE = 10 * MB
# The share of the triad limit that was aimed at, for Adam.
TRIAD_TARGET = 0.7
# Through shared memory weights are read in place. The worker copies the gradient
# into the shared slot, the server copies it into its staging and checks it in the
# same pass, and plain SGD reads two words and writes one: as much traffic as one
# copy and a half.
COPIES = 3.5


def plain(samples: Samples) -> str:
    """``1234 ±3%``: median and half the interquartile range."""
    return f"{number(samples.median)} ±{samples.spread:.0%}"


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratios(title: str, rows: Sequence[Row]) -> Table:
    """Steps per second of every peer, and its multiple of TensorFlow's; with the target where there is one."""
    names = [name for name in LABELS if any(name in row.bursts for row in rows)]
    table = Table(
        title=f"{title}: steps/s (all workers), multiple of {LABELS[TF]}",
        title_justify="left",
        header_style="bold",
        show_lines=True,
    )
    table.add_column("load")
    for name in names:
        table.add_column(LABELS[name], justify="right")
    for row in rows:
        table.add_row(row.load.name, *(_cell(row, name) for name in names))
    return table


def encrypted(rows: Sequence[Row]) -> Table | None:
    """How many times as long a step takes over TLS: round by round, with its quartiles; and what it takes of CPU,
    of all ends together, which a busy machine changes less. None without a pair."""
    table = Table(title="TLS against plain: time of a step", title_justify="left", header_style="bold")
    headings = ("load", "over", "plain ms", "TLS ms", "times as long", "quartiles", "CPU ms", "TLS CPU ms")
    for column in headings:
        table.add_column(column, justify="left" if column in ("load", "over") else "right")
    for row in rows:
        for name, bare in OVER_TLS.items():
            if name not in row.bursts or bare not in row.bursts:
                continue
            ratio = row.rate(bare).per(row.rate(name))
            low, _, high = quantiles(ratio.values, n=4) if len(ratio.values) > 1 else [ratio.median] * 3
            each = [1e3 * row.load.workers / row.rate(peer).median for peer in (bare, name)]
            cells = (*map(number, each), f"{ratio.median:.2f}", f"{low:.2f} - {high:.2f}")
            spent = [number(_processors(row, peer)) for peer in (bare, name)]
            table.add_row(row.load.name, LABELS[bare], *cells, *spent)
        if GRPC_TLS in row.bursts and SOCKET_TLS in row.bursts:
            ratio = row.rate(SOCKET_TLS).per(row.rate(GRPC_TLS))
            table.add_row(
                row.load.name, f"the socket is {number(ratio.median)}x as fast as gRPC, both over TLS"
            )
    return table if table.rows else None


def _processors(row: Row, name: str) -> float:
    """Milliseconds of CPU for a step, of servers and workers: of all rounds together, since systems count in ticks."""
    bursts = row.bursts[name]
    return 1e3 * sum(b.server_cpu + b.worker_cpu for b in bursts) / sum(b.steps for b in bursts)


def connections(found: Connections) -> Table:
    """Handshakes and joins, with and without TLS."""
    table = Table(title="Connecting, one after the other", title_justify="left", header_style="bold")
    for index, column in enumerate(("", "plain", "TLS", "times as many, or as long")):
        table.add_column(column, justify="right" if index else "left")
    for kind, label in KINDS.items():
        rates = [found.rate(kind, way) for way in (PLAIN, TLS)]
        table.add_row(
            f"connections to {label}'s port per second",
            *map(plain, rates),
            number(rates[0].per(rates[1]).median),
        )
        spent = [found.cpu(kind, way) for way in (PLAIN, TLS)]
        table.add_row(
            "  the server's CPU for each, ms", *(number(each.median) for each in spent),
            number(spent[1].median / spent[0].median) if spent[0].median else "-",
        )  # fmt: skip
    joins = [found.join(way) for way in (PLAIN, TLS)]
    ratio = number(joins[1].per(joins[0]).median)
    table.add_row(f"seconds until {WORKERS} workers have joined", *map(plain, joins), ratio)
    return table


def checkouts(rows: Sequence[Row]) -> Table:
    """Steps per second here and there; the ratio is taken round by round, with its quartiles."""
    table = Table(title="this checkout against the other: steps/s", title_justify="left", header_style="bold")
    for column in ("load", "peer", "here", "there", "ratio of rounds", "quartiles"):
        table.add_column(column, justify="left" if column in ("load", "peer") else "right")
    for row in rows:
        here, there = (name for name in row.bursts)
        here, there = (there, here) if here.endswith(OTHER) else (here, there)
        ratio = row.rate(here).per(row.rate(there))
        low, _, high = quantiles(ratio.values, n=4) if len(ratio.values) > 1 else [ratio.median] * 3
        cells = (
            plain(row.rate(here)),
            plain(row.rate(there)),
            f"{ratio.median:.3f}",
            f"{low:.2f} - {high:.2f}",
        )
        table.add_row(row.load.name, LABELS[here], *cells)
    return table


def _cell(row: Row, name: str) -> Text:
    if name not in row.bursts:
        return Text("-")
    text = Text(plain(row.rate(name)))
    if name != TF and TF in row.bursts:
        text.append("\n")
        text.append(_ratio(row, name))
    reached = share_of_limit(row, name)
    if reached is not None and row.load.nbytes >= LARGE:
        text.append(f"\n{reached.median:.2f} of the limit", style="dim")
    return text


def _ratio(row: Row, name: str) -> Text:
    ratio = row.rate(name).per(row.rate(TF))
    target = row.load.targets.get(name)
    if target is None or name == ALONE:
        return Text(f"{number(ratio.median)}x")
    reached = ratio.median >= target
    return Text(f"{number(ratio.median)}x (aim {target:g}x)", style="green" if reached else "red")


def share_of_limit(row: Row, peer: str) -> Samples | None:
    """Over TCP: GB/s both ways against the one-way rate of a bare socket. Shared memory: the time that its
    copies cost at memcpy speed against a step's time. None where neither limit is the peer's."""
    if not row.load.nbytes:
        return None
    if peer in (GRPC, SOCKET):
        return row.moved(peer).per(row.limit("socket"))
    if peer == SHM:
        copied = Samples(tuple(COPIES / 2 * value for value in row.moved(peer).values))
        return copied.per(row.limit("memcpy"))
    return None


def limits(samples: Mapping[str, Sequence[float]]) -> Table:
    """The machine's limits over the whole run."""
    table = Table(title="Raw limits of this machine", title_justify="left", header_style="bold")
    table.add_column("limit")
    table.add_column("median", justify="right")
    for name, meaning in MEANING.items():
        table.add_row(meaning, plain(collected(samples[name])))
    return table


def scaling(title: str, rows: Iterable[Row]) -> Table:
    """Steps/s and parallel efficiency by number of workers and servers."""
    table = Table(title=title, title_justify="left", header_style="bold")
    headings = ("workers", "servers", "over", "steps/s", "GB/s", "efficiency", "server CPU s/GB")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 2 else "right")
    single: dict[tuple[int, str], float] = {}
    for row in rows:
        for name, bursts in row.bursts.items():
            load, rate = row.load, row.rate(name)
            per_worker = rate.median / load.workers
            # One worker's own rate, with as many servers and over the same transport.
            alone = single.setdefault((load.servers, name), per_worker)
            moved = 2 * load.nbytes * sum(burst.steps for burst in bursts) / 1e9
            table.add_row(
                str(load.workers),
                str(load.servers),
                LABELS[name],
                plain(rate),
                number(row.moved(name).median),
                f"{per_worker / alone:.0%}",
                number(sum(burst.server_cpu for burst in bursts) / moved),
            )
    return table


def kernels(rows: Sequence[KernelRow]) -> Table:
    """GB/s of ours, and what that is against the triad limit, numpy and Keras on this CPU."""
    shown = Table(
        title=f"Updates of {rows[0].elements / 2**20:g}M floats", title_justify="left", header_style="bold"
    )
    headings = ("pass", "threads", "triad GB/s", "ours GB/s", "of the triad", "times numpy", "times Keras")
    for index, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if index else "left")
    for row in rows:
        shown.add_row(
            row.name,
            str(row.threads),
            plain(row.triad),
            plain(row.fused),
            _triad_share(row),
            number(row.fused.per(row.numpy).median),
            number(row.fused.per(row.keras).median) if row.keras else "-",
        )
    return shown


def _triad_share(row: KernelRow) -> Text:
    share = row.of_triad.median
    if row.name != "adam":
        return Text(f"{share:.2f}")
    return Text(f"{share:.2f} (aim {TRIAD_TARGET})", style="green" if share >= TRIAD_TARGET else "red")
