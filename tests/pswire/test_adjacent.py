"""Parts of one array are joined without a copy, and others with one; the numbers are the same."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pswire.model.adjacent import Cut, cut, joined


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_parts_are_joined(sizes: list[int], data: st.DataObject) -> None:
    whole = np.arange(sum(sizes) * 2, dtype=np.float32)
    ends = np.cumsum(sizes)
    parts = [
        whole[2 * (end - size) : 2 * end].reshape(size, 2) for end, size in zip(ends, sizes, strict=True)
    ]
    found = joined(parts)
    assert found.tolist() == whole.tolist()
    assert found.size == 0 or np.shares_memory(found, whole)
    order = data.draw(st.permutations(range(len(parts))))
    mixed = [parts[k] if data.draw(st.booleans()) else parts[k].copy() for k in order]
    expected = np.concatenate([part.reshape(-1) for part in mixed])
    assert joined(mixed).tolist() == expected.tolist()


def test_parts_that_are_not_contiguous_are_copied() -> None:
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert joined([whole[:, :2], whole[:, 2:]]).tolist() == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]
    assert joined([whole[::2, 0]]).tolist() == [0, 8]
    # Parts of bytes, seen as numbers.
    octets = np.frombuffer(whole.tobytes(), np.uint8)
    halves = [octets[:24].view(np.float32), octets[24:].view(np.float32)]
    assert joined(halves).tolist() == whole.reshape(-1).tolist()


def test_what_was_cut_remembers_what_it_was_cut_from() -> None:
    whole = np.arange(12, dtype=np.float32)
    parts = cut(whole, [4, 0, 8])
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3], [], list(range(4, 12))]
    assert joined(parts) is whole
    assert joined(Cut.of(whole, (part.reshape(-1, 2) for part in parts))) is whole
