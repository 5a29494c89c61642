"""Processor time of encoding and decoding 17M elements, beside a copy and an addition of the same arrays."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.loads import MODEL_SHAPES
from pswire.command.process import keep_large_blocks
from pswire.model.plan import ShardLayout, VariableSpec, make_plan
from pswire.transport.wire import codec_named

CODECS = ("int8", "int4", "top-k")


def measure(rounds: int) -> Mapping[str, list[float]]:
    """Return seconds of this thread for each action, one in each round: all take turns."""
    # As workers and servers do.
    keep_large_blocks()
    variables = [VariableSpec(f"v{n}", shape) for n, shape in enumerate(MODEL_SHAPES["mlp"])]
    actions = _actions(make_plan(variables, 1).shards[0])
    found: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            begin = time.thread_time()
            action()
            found[name].append(time.thread_time() - begin)
    return found


def _actions(layout: ShardLayout) -> dict[str, Callable[[], object]]:
    values = np.random.default_rng(0).normal(size=layout.elements).astype(np.float32)
    other, out = values * np.float32(0.01), np.empty_like(values)
    actions: dict[str, Callable[[], object]] = {
        "copy": lambda: np.copyto(out, values),
        # What error feedback takes at least: one array is added to another, into a third.
        "addition": lambda: np.add(values, other, out=out),
    }
    for name in CODECS:
        encode, decode = _both(name, layout, values, out)
        actions |= {f"{name}, encode": encode, f"{name}, decode": decode}
    return actions


def _both(
    name: str, layout: ShardLayout, values: Any, out: Any
) -> tuple[Callable[[], object], Callable[[], object]]:
    codec, tickets = codec_named(name), iter(range(1, 1 << 30))
    encoder = codec.encoder(layout)

    def encode() -> Any:
        ticket = next(tickets)
        payload = encoder.encode(ticket, values)
        encoder.keep(ticket)
        return payload

    # The first three need new memory.
    payload = [encode() for _ in range(4)][-1]
    return encode, lambda: codec.decoder(layout, out).feed(payload.data)


def table(found: Mapping[str, list[float]]) -> Table:
    """Return medians, and medians of the ratio to a copy in the same round."""
    shown = Table(title="17M elements, one thread", title_justify="left", header_style="bold")
    for heading in ("", "ms", "by a copy"):
        shown.add_column(heading, justify="right")
    for name, seconds in found.items():
        ratio = statistics.median(own / copy for own, copy in zip(seconds, found["copy"], strict=True))
        shown.add_row(name, f"{1e3 * statistics.median(seconds):.1f}", f"{ratio:.2f}")
    return shown
