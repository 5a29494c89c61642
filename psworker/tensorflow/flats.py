"""Between a model's variables and the flat payloads of a plan, in the graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from pswire.model.plan import Plan
from psworker.tensorflow.casts import rounded, widened
from psworker.tensorflow.variables import ModelVariables

# Elements from which a copy costs more than one more array to hand over (some 10 us).
APART = 2**18


class FlatLayout:
    """Where the elements of every variable lie in the payloads of `plan`, one per server: [trainable | state]."""

    def __init__(self, plan: Plan, model: ModelVariables) -> None:
        self._plan = plan
        self._model = model
        self._pieces = _pieces(plan)

    def cut(self, flats: list[Any]) -> list[Any]:
        """Payloads to one tensor per variable, in its own shape and dtype."""
        values = []
        for variable, pieces in zip(self._model.variables, self._pieces, strict=True):
            parts = [widened(flats[server][start:stop]) for server, start, stop in pieces]
            whole = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
            values.append(tf.cast(tf.reshape(whole, variable.shape), variable.dtype))
        return values

    def join(self, values: list[Any], dtypes: list[Any]) -> list[list[Any]]:
        """One float32 tensor per variable to payloads of `dtypes`: each shard's rows, in the order of its slices.

        Of each payload, the parts that lie one behind the other: what is large stays as it is, for to join it here
        would be a copy; see `psworker.data.payloads.Pieces`.
        """
        specs = self._plan.variables
        rows = [tf.reshape(value, [spec.rows, -1]) for value, spec in zip(values, specs, strict=True)]
        payloads = []
        for shard, dtype in zip(self._plan.shards, dtypes, strict=True):
            parts = [rows[piece.variable][piece.start : piece.stop] for piece in shard.slices]
            flat = [rounded(tf.reshape(part, [-1]), dtype) for part in parts]
            runs = _runs(flat, [piece.size for piece in shard.slices])
            joined = [run[0] if len(run) == 1 else tf.concat(run, axis=0) for run in runs]
            payloads.append(joined or [tf.zeros([0], dtype)])
        return payloads


def _runs(parts: list[Any], sizes: list[int]) -> list[list[Any]]:
    """Flat tensors in their order: each large one alone, small ones with their neighbours."""
    runs: list[list[Any]] = []
    open_run = False
    for part, size in zip(parts, sizes, strict=True):
        small = size < APART
        if small and open_run:
            runs[-1].append(part)
        else:
            runs.append([part])
        open_run = small
    return runs


def _pieces(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """Per variable, where its elements lie: (server, start, stop) in that server's payload, in row order."""
    found: list[list[tuple[int, int, int, int]]] = [[] for _ in plan.variables]
    for number, shard in enumerate(plan.shards):
        for piece in shard.slices:
            found[piece.variable].append((piece.start, number, piece.offset, piece.offset + piece.size))
    return [[(server, start, stop) for _, server, start, stop in sorted(pieces)] for pieces in found]
