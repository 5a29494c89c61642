"""Sparse tables: their specification, the keys of ids, where keys lie, and the initial row of each.

An id is any int64. Its key is ``mix(id)``, a bijection onto uint64 that spreads ids evenly. The upper 12 bits of a key
are its bucket. Each server has a contiguous range of buckets, so its keys are one slice of a sorted array.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pswire.domains import in_range
from pswire.model.adjacent import Cut, joined
from pswire.model.variables import PlanError
from pswire.values import value

Keys = NDArray[np.uint64]
Floats = NDArray[np.float32]

# Fixed for all jobs, so that a checkpoint's buckets fit any number of servers up to this.
BUCKETS: Final = 4096
LARGEST_DIM: Final = 4096
LONGEST_NAME: Final = 256
# The numbers of each initializer, with defaults.
INITIALIZERS: Final[Mapping[str, Mapping[str, float]]] = {
    "zeros": {},
    "uniform": {"low": -0.05, "high": 0.05},
    "normal": {"mean": 0.0, "stddev": 0.05},
}
# Draws of "normal" are within so many standard deviations.
NORMAL_REACH: Final = 6
_SHIFT: Final = np.uint64(52)
_LARGEST_SINGLE: Final = float(np.finfo(np.float32).max)


@value
class TableSpec:
    """One table. Raises PlanError for a value out of bounds.

    `numbers`: the initializer's, in the order of `INITIALIZERS`. `optimizer`: the rule's settings as canonical JSON;
    "" for the job's optimizer. `admit`: the chance that a gradient for an id without a row makes one; a gradient that
    makes none is dropped. Rows go that no update has touched for `evict_age` versions; None: none go. Each bucket is
    looked through once in `evict_every` versions. An id that returns begins anew.
    """

    name: str
    dim: int
    initializer: str = "uniform"
    numbers: tuple[float, ...] = (-0.05, 0.05)
    seed: int = 0
    optimizer: str = ""
    buckets: int = BUCKETS
    admit: float = 1.0
    evict_age: int | None = None
    evict_every: int = 100

    def __post_init__(self) -> None:
        _need(
            isinstance(self.name, str) and 0 < len(self.name) <= LONGEST_NAME,
            "name",
            self.name,
            "1 to 256 characters",
        )
        _need(_whole(self.dim, 1, LARGEST_DIM), "dim", self.dim, f"a whole number from 1 to {LARGEST_DIM}")
        _need(_whole(self.seed, 0, 2**63 - 1), "seed", self.seed, "a whole number from 0 to 2^63 - 1")
        _need(self.buckets == BUCKETS, "buckets", self.buckets, str(BUCKETS))
        _need(
            self.initializer in INITIALIZERS,
            "initializer",
            self.initializer,
            f"one of {', '.join(INITIALIZERS)}",
        )
        known = INITIALIZERS[self.initializer]
        fits = len(self.numbers) == len(known) and all(map(_single, self.numbers))
        _need(fits, "initializer's numbers", self.numbers, f"finite float32 for each of {tuple(known)}")
        if self.initializer == "uniform":
            low, high = self.numbers
            _need(low <= high and _single(high - low), "initializer's numbers", self.numbers, "low <= high")
        if self.initializer == "normal":
            mean, stddev = self.numbers
            _need(stddev >= 0, "stddev", stddev, "0 or more")
            _need(
                _single(abs(mean) + NORMAL_REACH * stddev),
                "initializer's numbers",
                self.numbers,
                f"so small that rows, within {NORMAL_REACH} standard deviations of the mean, are finite float32",
            )
        _need(_single(self.admit) and 0 < self.admit <= 1, "admit", self.admit, "a number above 0, at most 1")
        _need(
            self.evict_age is None or _whole(self.evict_age, 1, 2**32 - 1),
            *("evict_age", self.evict_age, "a whole number from 1, or none"),
        )
        _need(
            _whole(self.evict_every, 1, 2**32 - 1), "evict_every", self.evict_every, "a whole number from 1"
        )
        _need(
            self.optimizer == "" or _is_table(self.optimizer),
            "optimizer",
            self.optimizer,
            "a JSON object, or none",
        )

    def to_json(self) -> dict[str, object]:
        """Return the specification as JSON-able values, defaults included."""
        numbers = dict(zip(INITIALIZERS[self.initializer], self.numbers, strict=True))
        return {
            "name": self.name,
            "dim": self.dim,
            "initializer": {"name": self.initializer, **numbers},
            "seed": self.seed,
            "optimizer": json.loads(self.optimizer) if self.optimizer else None,
            "buckets": self.buckets,
            **{rule: getattr(self, rule) for rule in RULES if getattr(self, rule) != DEFAULTS[rule]},
        }

    @classmethod
    def from_json(cls, data: object) -> "TableSpec":
        """Read what `to_json` returned, or the part of it that differs from defaults. Raises PlanError."""
        _need(isinstance(data, Mapping), "specification", data, "an object with name and dim")
        table = dict(data)  # type: ignore[call-overload]
        unknown = set(table) - {"name", "dim", "initializer", "seed", "optimizer", "buckets", *RULES}
        _need(
            not unknown and {"name", "dim"} <= set(table),
            "keys",
            sorted(map(str, table)),
            "name and dim, and known ones",
        )
        initializer, numbers = _read_initializer(table.get("initializer", "uniform"))
        optimizer = table.get("optimizer")
        _need(
            optimizer is None or isinstance(optimizer, Mapping), "optimizer", optimizer, "an object, or none"
        )
        return cls(
            table["name"],
            table["dim"],
            initializer,
            numbers,
            table.get("seed", 0),
            "" if optimizer is None else canonical(optimizer),
            table.get("buckets", BUCKETS),
            **{rule: table[rule] for rule in RULES if rule in table},
        )

    def __str__(self) -> str:
        return f"{self.name} (rows of {self.dim})"


# Which rows there are: what stands in a specification's JSON only where it is not the default.
RULES: Final = ("admit", "evict_age", "evict_every")
DEFAULTS: Final[Mapping[str, object]] = {
    each.name: each.default for each in fields(TableSpec) if each.name in RULES
}


def check_tables(specs: Sequence[TableSpec]) -> None:
    """Raise PlanError if two tables have one name."""
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(
                f"expected tables of different names, got {name!r} twice; rename one, or share the table"
            )


def canonical(settings: Mapping[str, object]) -> str:
    """Return settings as JSON of one form, for comparison. Raises PlanError for what JSON cannot say."""
    try:
        return json.dumps(dict(settings), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PlanError(f"table: optimizer must be settings that JSON can say: {error}") from error


def _read_initializer(given: object) -> tuple[str, tuple[float, ...]]:
    table = {"name": given} if isinstance(given, str) else given
    _need(
        isinstance(table, Mapping) and "name" in table,
        "initializer",
        given,
        "a name, or an object with a name",
    )
    assert isinstance(table, Mapping)
    rest = {key: number for key, number in table.items() if key != "name"}
    name = table["name"]
    _need(
        isinstance(name, str) and name in INITIALIZERS,
        "initializer",
        name,
        f"one of {', '.join(INITIALIZERS)}",
    )
    known = INITIALIZERS[name]
    _need(set(rest) <= set(known), "initializer's numbers", sorted(map(str, rest)), f"some of {tuple(known)}")
    numbers = {**known, **rest}
    _need(all(map(_number, numbers.values())), "initializer's numbers", numbers, "numbers")
    return name, tuple(float(numbers[key]) for key in known)


def _need(good: bool, what: str, got: object, expected: str) -> None:
    if not good:
        raise PlanError(f"table: {what} must be {expected}, got {got!r:.100}")


def _number(given: object) -> bool:
    return in_range(given)


def _single(given: object) -> bool:
    return in_range(given, -_LARGEST_SINGLE, _LARGEST_SINGLE)


def _whole(given: object, least: int, most: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and least <= given <= most


def _is_table(text: object) -> bool:
    try:
        return (
            isinstance(text, str) and isinstance(read := json.loads(text), dict) and canonical(read) == text
        )
    except (ValueError, PlanError):
        return False


# Keys

_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_BACK = tuple(np.uint64(pow(factor, -1, 2**64)) for factor in (_SECOND, _FIRST))
_33 = np.uint64(33)


def mix(ids: ArrayLike) -> Keys:
    """Return the key of each id: the 64-bit finaliser of MurmurHash3 (Appleby 2011), a bijection.

    Raises TypeError unless `ids` are integers that fit int64.
    """
    return _finalise(_whole_numbers(ids).view(np.uint64), np.uint64(_FIRST), np.uint64(_SECOND))


def _whole_numbers(ids: ArrayLike) -> NDArray[np.int64]:
    given = np.asarray(ids)
    if given.size == 0:
        given = given.astype(np.int64)
    if given.dtype.kind not in "iu" or (given.dtype == np.uint64 and bool((given >> np.uint64(63)).any())):
        raise TypeError(f"ids must be whole numbers of int64, got {given.dtype}")
    return given.astype(np.int64, copy=False)


def unmix(keys: Keys) -> NDArray[np.int64]:
    """Return the ids of keys: the inverse of `mix`."""
    return _finalise(keys, *_BACK).view(np.int64)


def _finalise(bits: Keys, first: np.uint64, second: np.uint64) -> Keys:
    # A shift by more than half of the bits is its own inverse under xor.
    bits = bits ^ (bits >> _33)
    bits = bits * first
    bits ^= bits >> _33
    bits *= second
    bits ^= bits >> _33
    return bits


def bucket(keys: Keys) -> NDArray[np.int64]:
    """Return the bucket of each key, from 0 to `BUCKETS` - 1."""
    return (keys >> _SHIFT).astype(np.int64)


def bucket_range(server: int, servers: int) -> tuple[int, int]:
    """Return the buckets [start, stop) of a server; ranges of all servers cover all buckets.

    Raises PlanError unless 0 <= server < servers <= BUCKETS.
    """
    _need(0 < servers <= BUCKETS, "number of servers", servers, f"from 1 to {BUCKETS}")
    _need(0 <= server < servers, "server", server, f"from 0 to {servers - 1}")
    return server * BUCKETS // servers, (server + 1) * BUCKETS // servers


def split(keys: Keys, servers: int) -> tuple[slice, ...]:
    """Return each server's slice of sorted keys."""
    if servers == 1:
        return (slice(0, keys.size),)
    at = np.searchsorted(keys, _least_keys(servers)).tolist()
    return tuple(slice(start, stop) for start, stop in zip(at, [*at[1:], keys.size], strict=True))


@cache
def _least_keys(servers: int) -> Keys:
    """Return the key from which on each server has keys. A step asks for each table."""
    starts = [bucket_range(server, servers)[0] for server in range(servers)]
    return np.array(starts, np.uint64) << _SHIFT


def check_keys(keys: Keys, start: int, stop: int) -> str | None:
    """Return what is wrong with keys of a message for buckets [start, stop), or None.

    Expected are keys that rise strictly, all in these buckets.
    """
    if keys.size and not bool((keys[1:] > keys[:-1]).all()):
        return "expected sorted keys without duplicates"
    if keys.size and not (start <= int(keys[0] >> _SHIFT) and int(keys[-1] >> _SHIFT) < stop):
        return f"expected keys of buckets {start} to {stop - 1}, got one of another server's"
    return None


def first_wrong(several: Sequence[Keys], start: int, stop: int) -> int | None:
    """Return the number of the first array in which `check_keys` finds something wrong, or None."""
    if not any(each.size for each in several):
        return None
    keys = joined(several) if isinstance(several, Cut) else np.concatenate(several)
    rises = keys[1:] > keys[:-1]
    # Between two arrays keys may fall.
    ends = np.cumsum([each.size for each in several])
    rises[ends[(ends > 0) & (ends < keys.size)] - 1] = True
    if bool(rises.all()) and start <= int(keys.min() >> _SHIFT) and int(keys.max() >> _SHIFT) < stop:
        return None
    return next((i for i, each in enumerate(several) if check_keys(each, start, stop) is not None), None)


# Batches


@cache
def compiled_batches() -> Any:
    """Compile the loops of `uniques` and `sums`, or load what an earlier process compiled."""
    return import_module("pswire.model.batch_kernels")


def unique(ids: ArrayLike) -> tuple[Keys, NDArray[np.int32]]:
    """Return the sorted unique keys of `ids`, and of each id (flattened) its position among them."""
    return uniques([ids])[0]


def uniques(several: Sequence[ArrayLike]) -> list[tuple[Keys, NDArray[np.int32]]]:
    """Return `unique` of the ids of several tables at once."""
    if not several:
        return []
    whole = [np.ascontiguousarray(_whole_numbers(ids)).reshape(-1) for ids in several]
    found: list[tuple[Keys, NDArray[np.int32]]] = compiled_batches().uniques(whole)
    return found


def sums(inverse: NDArray[np.int32], gradients: Floats, rows: int) -> Floats:
    """Return the sum of gradients of each of `rows` keys, added in the order of positions.

    `gradients`: float32 [len(inverse), dim]. The bits are those of TensorFlow's segment sum.
    """
    total = np.zeros((rows, gradients.shape[1]), np.float32)
    add = compiled_batches().add
    add(np.ascontiguousarray(inverse, np.int32), np.ascontiguousarray(gradients, np.float32), total)
    return total


def tables_from_json(data: Any) -> tuple[TableSpec, ...]:
    """Read a list of specifications. Raises PlanError."""
    _need(isinstance(data, list | tuple), "list of tables", data, "a list")
    specs = tuple(TableSpec.from_json(each) for each in data)
    check_tables(specs)
    return specs


def tables_to_json(tables: Sequence[TableSpec]) -> str:
    """Return specifications as JSON; "" for none."""
    return json.dumps([table.to_json() for table in tables]) if tables else ""


def tables_from_text(text: str) -> tuple[TableSpec, ...]:
    """Read what `tables_to_json` returned. Raises PlanError."""
    try:
        return tables_from_json(json.loads(text)) if text else ()
    except (ValueError, RecursionError, TypeError) as error:
        raise PlanError(f"tables: expected a JSON list of specifications: {error}") from error


def explain_other_tables(ours: Sequence[TableSpec], theirs: Sequence[TableSpec]) -> str:
    """Return the first difference between the tables of a job and those of a worker."""
    for here, there in zip(ours, theirs, strict=False):
        if here != there:
            return f"table {here.to_json()} here is {there.to_json()} there"
    return f"{len(ours)} tables here, {len(theirs)} there"


def read_octets(spec: TableSpec, octets: NDArray[np.uint8]) -> tuple[Keys, Floats]:
    """Return keys and rows of a part of a table that travelled whole. Raises PlanError for bytes that are none."""
    count, rest = divmod(octets.size, 8 + 4 * spec.dim)
    if rest:
        raise PlanError(
            f"table {spec.name!r}: expected whole rows of {8 + 4 * spec.dim} bytes, got {octets.size}"
        )
    keys = octets[: 8 * count].view("<u8").astype(np.uint64)
    return keys, octets[8 * count :].view("<f4").astype(np.float32).reshape(count, spec.dim)


def joined_parts(spec: TableSpec, parts: Sequence[NDArray[np.uint8]]) -> tuple[NDArray[np.int64], Floats]:
    """Return ids and rows of a table from every server's part, in the order of the servers: the order of keys."""
    read = [read_octets(spec, part) for part in parts]
    return unmix(np.concatenate([keys for keys, _ in read])), np.concatenate([rows for _, rows in read])
