"""The weights that a shard publishes as changes: the optimizer's own, the published ones, and the changes between."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from psserver.shard.facts import Marks
from pswire.model.groups import GroupPart, Groups
from pswire.model.plan import ShardLayout
from pswire.transport.blocks import BlockCodec
from pswire.transport.deltas import checksum, encode_change, longest_chain

Floats = NDArray[np.float32]
Octets = NDArray[np.uint8]

# No checksum of a version.
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Change:
    """The difference that leads to a version from the one before it. `before`: that one's checksum; None where groups
    of rows take turns, whose readers ask with versions of their membership only."""

    version: int
    before: int | None
    payload: Octets


class DeltaStream:
    """Makes the published versions of one shard from the optimizer's weights (see `pswire.transport.deltas`).

    `exact`: the optimizer's weights; `spare`: where the next ones are computed. One thread at a time calls `make`; the
    other methods belong to the thread that owns the shard.
    """

    def __init__(self, codec: BlockCodec, layout: ShardLayout, groups: Groups | None = None) -> None:
        self.codec, self._layout = codec, layout
        self._groups = groups if groups is not None and groups.count > 1 else None
        self.exact, self.spare = (np.zeros(layout.elements, np.float32) for _ in range(2))
        # A reader that has missed a change of every group is sent a whole version.
        most = longest_chain(codec, layout) if self._groups is None else self._groups.count - 1
        self._changes: deque[Change] = deque(maxlen=most)
        # The checksum of the newest version; None until it is needed.
        self._newest: int | None = None
        self._made: tuple[Octets, int | None] | None = None

    def begin(self, exact: Floats) -> None:
        """Go on from the optimizer's weights `exact`; no earlier change is known."""
        self.exact[...] = exact
        self._changes.clear()
        self._newest = None

    def make(self, before: Floats, out: Floats, base: int = 0) -> Marks:
        """Write the next version to `out`, from the version `before` (number `base`) and the weights in `spare`.

        Return which elements of it keep their old values, because the change or the new number is not finite.
        """
        if self._groups is not None:
            payload, kept = self._changed_group(self._groups.of(base, self._layout.server), before, out)
            self._made = (payload, None)
            return kept
        if self._newest is None:
            self._newest = checksum(before)
        payload, after, kept = encode_change(self.codec, self._layout, self.spare, before, out)
        self._made = (payload, after)
        return kept

    def _changed_group(self, part: GroupPart, before: Floats, out: Floats) -> tuple[Octets, Marks]:
        """As `make`, where only one group of rows changes: return its change too."""
        made = np.empty(part.layout.elements, np.float32)
        wanted, old = part.take(self.spare), part.take(before)
        payload, _, kept = encode_change(self.codec, part.layout, wanted, old, made)
        out[...] = before
        part.put(out, made)
        if kept is None:
            return payload, None
        whole = np.zeros(out.size, np.float32)
        part.put(whole, kept.astype(np.float32))
        return payload, whole > 0

    def publish(self, version: int) -> None:
        """Take over what `make` made, as that version."""
        assert self._made is not None
        payload, after = self._made
        self._changes.append(Change(version, self._newest, payload))
        self._newest, self._made = after, None
        self.exact, self.spare = self.spare, self.exact

    def chain(self, base: int, base_checksum: int, version: int) -> list[Octets] | None:
        """Return the changes from version `base` to `version`, none if that is the same one; None if they are not all
        known, or the reader's `base` is another one."""
        if base == version and self._checksum(version) in (None, base_checksum):
            return []
        changes = self._between(base, version)
        if not changes or changes[0].before not in (None, base_checksum):
            return None
        return [change.payload for change in changes]

    def _checksum(self, version: int) -> int | None:
        """Return the checksum of a version between two known changes, or behind the last; `_UNKNOWN` of any other
        one, and None where groups of rows take turns."""
        if self._groups is not None:
            return None
        known = {change.version - 1: change.before for change in self._changes}
        if self._changes:
            known[self._changes[-1].version] = self._newest
        return known.get(version, _UNKNOWN)

    def covers(self, base: int, version: int) -> bool:
        """Return whether the changes from version `base` to `version` are known, or that is the same one."""
        if base == version:
            return self._checksum(version) != _UNKNOWN
        return bool(self._between(base, version))

    def _between(self, base: int, version: int) -> list[Change]:
        changes = [change for change in self._changes if base < change.version <= version]
        return changes if len(changes) == version - base else []


def stream_bytes(codec: BlockCodec, layout: ShardLayout) -> int:
    """Return the bytes that a stream takes at most, beside the versions."""
    return 2 * layout.nbytes + longest_chain(codec, layout) * codec.size(layout)
