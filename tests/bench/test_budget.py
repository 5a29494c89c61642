"""The budget's arithmetic; that its parts run at all is shown on arrays of a few numbers."""

import io

import pytest
from rich.console import Console

from benchmarks.kinds import GRPC, SHM
from benchmarks.measures import budget
from benchmarks.measures.budget import PARTS, Budget
from benchmarks.measures.samples import collected
from psserver.fast import FastBackend

PART = {name: collected([1.0, 3.0, 2.0]) for name in PARTS}
WHOLE = {SHM: collected([20.0, 20.0, 20.0]), GRPC: collected([5.0, 5.0, 5.0])}


def test_what_no_part_explains_is_in_between():
    parts = {t: sum(t in where for where in PARTS.values()) for t in (SHM, GRPC)}
    made = Budget("a load", PART, WHOLE)
    assert made.between(SHM) == 20.0 - 2.0 * parts[SHM]
    assert made.between(GRPC) == 5.0 - 2.0 * parts[GRPC] < 0


def test_the_table_has_a_column_per_load_and_transport():
    out = io.StringIO()
    Console(file=out, width=200).print(budget.table([Budget("a load", PART, WHOLE)]))
    text = out.getvalue()
    assert "a load, shared memory" in text and "a load, gRPC" in text
    assert all(name in text for name in PARTS)


def test_every_part_does_its_work():
    pytest.importorskip("numba")
    carried: list[int] = []
    carry = {
        "unix": lambda p: carried.append(p.size),
        "stream": lambda p: carried.append(-p.size),
        "socket": lambda p: carried.append(-p.size),
    }
    with FastBackend(2) as backend:
        parts = budget.parts_of(100, backend, carry)
        assert list(parts) == list(PARTS)
        for action in parts.values():
            for _ in range(3):
                action()
    assert carried == [100] * 3 + [-100] * 6
