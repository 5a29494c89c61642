"""A part is lost when no disk names a copy in a process that lives."""

from psserver.replication import Config, StableMemory, SyncMember, first_config
from psserver.replication.losing import lost

FIRST = first_config((0, 1))
BEGUN = StableMemory(0, FIRST)


def named(epoch: int, *members: SyncMember) -> StableMemory:
    return StableMemory(epoch, Config(epoch, members[0].server, members))


def test_a_part_is_lost_when_all_its_copies_have_started_again() -> None:
    disks = [BEGUN, BEGUN, BEGUN]
    assert not lost([0, 0, 0], disks)
    assert not lost([1, 0, 0], disks) and not lost([0, 1, 5], disks)
    assert lost([1, 1, 0], disks)


def test_a_copy_that_was_left_out_is_none() -> None:
    """Server 1 was, and server 0 has started again since: what server 1 has is not what became stable."""
    alone = named(3, SyncMember(0, 0))
    assert not lost([0, 1, 0], [alone, alone, alone])
    assert lost([1, 1, 0], [alone, alone, alone])


def test_a_configuration_that_a_minority_has_accepted_may_yet_count() -> None:
    """Either one may: the candidate's own, and the one before it, if no majority accepts the later one."""
    proposed = named(4, SyncMember(1, 0))
    assert not lost([1, 0, 0], [BEGUN, proposed, BEGUN])
    assert not lost([0, 1, 0], [BEGUN, proposed, BEGUN])
    assert lost([1, 1, 0], [BEGUN, proposed, BEGUN])


def test_a_later_generation_has_later_epochs() -> None:
    """A worker that has met another generation takes no answer of an earlier epoch."""
    assert first_config((2, 3), 1).epoch > first_config((2, 3)).epoch + 10_000
