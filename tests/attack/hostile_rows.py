"""Rows of sparse tables as a liar sends them: mostly right, and often wrong in one way."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pswire.model.plan import Plan
from pswire.model.rows import Rows
from pswire.model.tables import Floats, Keys, mix, split
from pswire.transport.codecs import FLOAT32
from pswire.transport.rows import RowFormat

# Ids of honest workers are among these; keys of others come from all of int64.
IDS = 200
HUGE = (2**10, 2**20, 2**28, 2**28 + 1, 2**32 - 1)
WRONGS = ("none", "none", "none", "unsorted", "twice", "foreign", "count", "huge", "number", "short", "long")


@dataclass(frozen=True)
class Behind:
    """What stands behind a payload: numbers of rows, and of rows wanted, by table; and bytes."""

    rows: Sequence[int]
    ahead: Sequence[int]
    data: bytes


def behind(chance: random.Random, plan: Plan, server: int, largest: float) -> Behind:
    """Return rows for `server`; `largest`: of finite numbers."""
    rows: Rows = [
        (keys, _values(chance, keys, table.dim, largest)) for table, keys in _keys(chance, plan, server)
    ]
    ahead = [keys for _, keys in _keys(chance, plan, server)]
    counts, wanted = [keys.size for keys, _ in rows], [keys.size for keys in ahead]
    wrong = chance.choice(WRONGS)
    several = [keys for keys in (*(keys for keys, _ in rows), *ahead) if keys.size > 1]
    if several and wrong in ("unsorted", "twice"):
        keys = chance.choice(several)
        keys[:2] = keys[1::-1] if wrong == "unsorted" else keys[0]
    elif several and wrong == "foreign":
        # Of another server, or of none here.
        chance.choice(several)[-1] = chance.choice((0, 2**64 - 1, 2**63))
    elif wrong == "number" and any(counts):
        values = chance.choice([values for _, values in rows if values.size])
        values.reshape(-1)[chance.randrange(values.size)] = chance.choice((math.nan, math.inf, -math.inf))
    data = b"".join(part.tobytes() for part in RowFormat(plan.tables, FLOAT32, counts).encode(rows, ahead))
    match wrong:
        case "count":
            numbers = chance.choice((counts, wanted))
            numbers[chance.randrange(len(numbers)) :] = [chance.randrange(9)] * chance.choice(
                (0, 1, 2, 40, 2000)
            )
        case "huge":
            numbers = chance.choice((counts, wanted))
            numbers[chance.randrange(len(numbers))] = chance.choice(HUGE)
        case "short":
            data = data[: chance.randrange(len(data) + 1)]
        case "long":
            data += chance.randbytes(chance.choice((1, 8, 1000)))
    return Behind(counts, wanted, data)


def _keys(chance: random.Random, plan: Plan, server: int) -> list[tuple[object, Keys]]:
    found = []
    for table in plan.tables:
        size = chance.choice((0, 1, 5, 30))
        ids = [
            chance.randrange(IDS) if chance.random() < 0.9 else chance.randrange(-(2**63), 2**63)
            for _ in range(size)
        ]
        keys = np.unique(mix(np.array(ids, np.int64)))
        found.append((table, keys[split(keys, len(plan.shards))[server]].copy()))
    return found


def _values(chance: random.Random, keys: Keys, dim: int, largest: float) -> Floats:
    return np.array([chance.gauss(0, largest) for _ in range(keys.size * dim)], np.float32).reshape(-1, dim)
