"""The state of layers under staleness: what open tickets started from, and how much a late value counts.

A contribution brings the change of layers' state (BatchNorm's averages) since the version that its ticket was granted.
The value that its worker ended with is that version's state plus the change, and the shard mixes this value into the
newest state, as FedAsync mixes models (Xie, Koyejo and Gupta 2019, algorithm 1):

    x' = x + w (value - x),  w = n / (n + staleness)

n: the tickets at work, this one among them. So w = 1 / (1 + age), with the age in rounds of n versions: a polynomial
weight of that paper, section 4.2. 0 < w <= 1, so x' lies between values that workers saw, whatever the delay and the
change. Without staleness w is 1, and the change is added as it is. All numbers follow from the log.
"""

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from psserver.records import StateError
from pswire.model.plan import ShardLayout

Floats = NDArray[np.float32]
# By the number of the piece of state.
Kept = dict[int, Floats]

BASE = "base"


def weight(tickets: int, staleness: int) -> float:
    """Return how much the state in a contribution counts. `tickets`: at work, that of the contribution among them."""
    return tickets / (tickets + staleness) if staleness else 1.0


class StateBases:
    """Layers' state at versions before the newest that open tickets started from.

    A piece is a variable's part on this server. Only pieces that have changed since are kept: frozen layers take no
    memory. Arrays are shared among versions and never written again.
    """

    def __init__(self, layout: ShardLayout) -> None:
        self._pieces = [
            (piece.variable, slice(piece.offset, piece.offset + piece.size))
            for piece in layout.slices
            if piece.offset >= layout.trainable
        ]
        self._kept: dict[int, Kept] = {}
        # For any thread.
        self.nbytes = 0

    def __bool__(self) -> bool:
        """Return False for a model without state."""
        return bool(self._pieces)

    def value(self, version: int, change: Floats, now: Floats, start: int) -> None:
        """Turn a contribution's change of state since `version` into the difference of its value to `now`, in place.

        `change` and `now`: the elements from `start` on of a payload and of the newest version.
        """
        for number, base in self._kept.get(version, {}).items():
            part = self._pieces[number][1]
            here = slice(part.start - start, part.stop - start)
            change[here] += base - now[here]

    def replaced(self, now: Floats, out: Floats, versions: Collection[int]) -> dict[int, Kept]:
        """Return what to keep when version `out` follows `now`. `versions`: those that open tickets started from.

        Changes nothing; `keep` takes the result.
        """
        kept = {version: dict(self._kept.get(version, {})) for version in sorted(versions)}
        if not kept:
            return kept
        for number, (_, part) in enumerate(self._pieces):
            if np.array_equal(now[part].view(np.uint32), out[part].view(np.uint32)):
                continue
            before: Floats | None = None
            for pieces in kept.values():
                if number not in pieces:
                    before = now[part].copy() if before is None else before
                    pieces[number] = before
        return kept

    def keep(self, kept: dict[int, Kept]) -> None:
        """Take what `replaced` returned."""
        self._kept = {version: pieces for version, pieces in kept.items() if pieces}
        arrays = {id(each): each for pieces in self._kept.values() for each in pieces.values()}
        self.nbytes = sum(each.nbytes for each in arrays.values())

    def prune(self, versions: Collection[int]) -> None:
        """Forget all but `versions`."""
        self.keep({version: pieces for version, pieces in self._kept.items() if version in versions})

    # Saved, by names "base/<version>/<number of the variable in the plan>"

    def state(self, versions: Collection[int]) -> dict[str, Floats]:
        """Return what is kept of `versions` by name, not copied."""
        return {
            f"{BASE}/{version}/{self._pieces[number][0]}": values
            for version, pieces in self._kept.items()
            if version in versions
            for number, values in pieces.items()
        }

    def shapes(self, names: Collection[str], versions: Collection[int]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each of these arrays. Raises StateError for one that no ticket needs."""
        sizes = {str(variable): (part.stop - part.start,) for variable, part in self._pieces}
        wanted = {f"{BASE}/{version}/{each}": size for version in versions for each, size in sizes.items()}
        if unknown := sorted(set(names) - wanted.keys()):
            raise StateError(f"shard state: {unknown[0]}: no open ticket started from that state")
        return {name: wanted[name] for name in names}

    def restore(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Take up what `state` returned; arrays are copied."""
        numbers = {variable: number for number, (variable, _) in enumerate(self._pieces)}
        kept: dict[int, Kept] = {}
        for name, values in arrays.items():
            if name.startswith(f"{BASE}/"):
                _, version, variable = name.split("/")
                copied = np.array(values, np.float32)
                kept.setdefault(int(version), {})[numbers[int(variable)]] = copied
        self.keep(kept)
