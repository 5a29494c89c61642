"""Initial rows of sparse tables, and which rows are made: pure functions of seed, table, key and version."""

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pswire.model.tables import Floats, Keys, TableSpec

_GOLDEN: Final = 0x9E3779B97F4A7C15
# Draws that are made at a time: 256 KiB, and a few times that between them and the rows.
_DRAWN: Final = 1 << 15


def initial_rows(spec: TableSpec, keys: Keys) -> Floats:
    """Return the initial rows of `keys`, float32 [n, dim]: a pure function of seed, table name, key and column.

    Draws are SplitMix64's (Steele, Lea, Flood 2014), numbered by column. "uniform" scales the upper 24 bits. "normal"
    adds twelve uniforms of 16 bits, less their mean: a sum of whole numbers, so that every machine has its bits;
    within 6 standard deviations.
    """
    if spec.initializer == "zeros":
        return np.zeros((keys.size, spec.dim), np.float32)
    draw, per = (_uniform, 1) if spec.initializer == "uniform" else (_normal, 3)
    rows = np.empty((keys.size, spec.dim), np.float32)
    block = max(1, _DRAWN // (per * spec.dim))
    for start in range(0, keys.size, block):
        rows[start : start + block] = draw(spec, _draws(spec, keys[start : start + block], spec.dim * per))
    return rows


def _uniform(spec: TableSpec, draws: Keys) -> Floats:
    low, high = map(np.float32, spec.numbers)
    share = (draws >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return share * (high - low) + low


def _normal(spec: TableSpec, draws: Keys) -> Floats:
    mean, stddev = map(np.float32, spec.numbers)
    quarters = np.zeros(draws.shape, np.int64)
    for shift in (0, 16, 32, 48):
        quarters += ((draws >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
    total = quarters.reshape(len(draws), spec.dim, 3).sum(axis=2) - 6 * 0xFFFF
    rows: Floats = total.astype(np.float32) * np.float32(2.0**-16) * stddev + mean
    return rows


def admitted(spec: TableSpec, keys: Keys, version: int) -> NDArray[np.bool_]:
    """Return whether an update to `version` makes a row of each key: a coin that is a pure function of both."""
    salt = hashlib.sha256(f"admit:{spec.seed}:{spec.name}:{version}".encode()).digest()[:8]
    coin = _splitmix(_splitmix(keys ^ np.uint64(int.from_bytes(salt, "little"))))
    return (coin >> np.uint64(11)).astype(np.float64) * 2.0**-53 < spec.admit


def _draws(spec: TableSpec, keys: Keys, count: int) -> Keys:
    salt = hashlib.sha256(f"{spec.seed}:{spec.name}".encode()).digest()[:8]
    start = _splitmix(keys ^ np.uint64(int.from_bytes(salt, "little")))
    steps = np.array([(step + 1) * _GOLDEN % 2**64 for step in range(count)], np.uint64)
    return _splitmix(start[:, None] + steps)


def _splitmix(bits: Keys) -> Keys:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
