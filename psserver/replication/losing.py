"""A part is lost when every process that had a copy of it has ended.

A server that starts again has no copy, and is nobody's member (`state.restart`): it waits for one that has. If there is
none, all would wait for ever. What the servers have on their disks shows it: no configuration there names a process
that lives. Then none can lead, now or later. A candidate must be a member of the newest configuration that a majority
tells it; that one is on a disk, and stays there until a later one takes its place, which names the candidate.
"""

from collections.abc import Sequence

from psserver.replication.configuration import StableMemory, SyncMember


def lost(incarnations: Sequence[int], disks: Sequence[StableMemory]) -> bool:
    """Return whether no copy is left. `incarnations`, `disks`: of all servers, at one moment.

    A server that has ended and was not started again counts as alive: nothing tells it from one that stands still.
    """
    alive = {SyncMember(server, incarnation) for server, incarnation in enumerate(incarnations)}
    return all(alive.isdisjoint(disk.config.members) for disk in disks)
