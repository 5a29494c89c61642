"""Which rows of which variable go to which server: no shard exceeds the mean by more than 5% or one row.

The rule is list scheduling (R. L. Graham, "Bounds on multiprocessing timing
anomalies", SIAM J. Appl. Math. 17, 1969) with splittable items. Variables
come in order of falling row size, because a row cannot be cut: coarse ones
are placed while every shard has room, fine ones fill the gaps. Each goes to
the least loaded shard: whole if it then stays within 1.05 of the mean,
otherwise as many rows as bring the shard to the mean (at least one), and the
rest to the shard that is now the least loaded.

Proof of the bound: a block larger than what brings a shard to the mean is
placed only if it is the whole rest and stays within 1.05 * mean, or if it is one
row. In that case the shard was the least loaded one, so its load was at most
(total - row) / servers, and it ends at or below mean + (1 - 1/servers) * row.
"""

from collections.abc import Sequence
from heapq import heapreplace

Piece = tuple[int, int, int]  # variable, first row, row after the last


def assign(variables: Sequence[tuple[int, int]], servers: int) -> list[list[Piece]]:
    """The pieces of each server, in the order of placement.

    `variables` are pairs (rows, elements per row), all >= 1. Integers only, ties broken by
    position, so the result does not depend on the machine.
    """
    total = sum(rows * width for rows, width in variables)
    target = -(-total // servers)
    # With a mean of a few elements its ceiling may exceed 1.05 of it, but never by a whole row.
    limit = max(target, total * 21 // (20 * servers))
    pieces: list[list[Piece]] = [[] for _ in range(servers)]
    loads = [(0, server) for server in range(servers)]  # a heap; invariant: sum of loads = elements placed
    for number in sorted(range(len(variables)), key=lambda n: (-variables[n][1], -variables[n][0], n)):
        rows, width = variables[number]
        start = 0
        while start < rows:
            load, server = loads[0]
            take = rows - start
            if load + take * width > limit:
                take = max(1, (target - load) // width)
            _append(pieces[server], (number, start, start + take))
            heapreplace(loads, (load + take * width, server))
            start += take
    return pieces


def _append(pieces: list[Piece], new: Piece) -> None:
    """Add a piece, joining it to the last one when that ends where this begins."""
    if pieces and pieces[-1][0] == new[0] and pieces[-1][2] == new[1]:
        new = (new[0], pieces.pop()[1], new[2])
    pieces.append(new)
