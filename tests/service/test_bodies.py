"""What items of a replicated log consist of: buffers that are used again, read by another server of the machine."""

from dataclasses import replace

import numpy as np
import pytest

from psserver.service.replicas.bodies import LARGE, SPARE, Bodies, Lies, Overwritten
from psserver.service.store.shared_memory import Sharing
from pswire.transport.segments import SegmentError


def bodies(transport: str = "auto") -> Bodies:
    return Bodies(Sharing(transport))


def parts(seed: int, nbytes: int = LARGE) -> list[bytes | bytearray | memoryview]:
    numbers = np.random.default_rng(seed).bytes(nbytes)
    return [numbers[:5], memoryview(numbers)[5:]]


def test_another_server_reads_a_large_body_where_it_lies() -> None:
    primary, follower = bodies(), bodies()
    probe = primary.probe()
    assert probe is not None and follower.can_read(probe)
    for seed in range(2 * SPARE):
        body = primary.make(parts(seed))
        primary.hold((0, seed), body)
        lies = primary.lies(body)
        assert lies is not None
        read = follower.read(lies, len(body))
        assert bytes(read) == b"".join(parts(seed))
        follower.hold((0, seed), read)
        assert follower.nbytes == primary.nbytes == LARGE
        for each in (primary, follower):
            each.drop((0, seed))
            assert each.nbytes == 0


def test_a_buffer_is_used_again_and_what_was_in_it_is_never_read_by_its_former_name() -> None:
    primary, follower = bodies(), bodies()
    first = primary.make(parts(1))
    lies = primary.lies(first)
    assert lies is not None
    primary.hold((0, 1), first)
    primary.drop((0, 1))
    second = primary.make(parts(2, LARGE + 7))
    again = primary.lies(second)
    assert again is not None and again.place == lies.place and again.use > lies.use
    with pytest.raises(Overwritten):
        follower.read(lies, LARGE)
    assert bytes(follower.read(again, LARGE + 7)) == b"".join(parts(2, LARGE + 7))


def test_a_segment_that_is_not_the_one_named_is_refused_and_no_more_are_asked_for() -> None:
    primary, follower = bodies(), bodies()
    lies, probe = primary.lies(primary.make(parts(1))), primary.probe()
    assert lies is not None and probe is not None and follower.can_read(probe)
    with pytest.raises(SegmentError):
        follower.read(Lies(replace(lies.place, token=b"x" * 16), lies.use), LARGE)
    assert not follower.can_read(probe)


@pytest.mark.parametrize("nbytes", [0, 1 << 40])
def test_a_body_beyond_its_segment_is_refused(nbytes: int) -> None:
    primary = bodies()
    lies = primary.lies(primary.make(parts(1)))
    assert lies is not None
    with pytest.raises(SegmentError):
        bodies().read(lies, nbytes)
