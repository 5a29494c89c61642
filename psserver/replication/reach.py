"""A primary that no client reaches leaves its place to a follower that clients reach.

Clients ask all servers again and again who leads, and say so if the server that others name has not answered for a
while. A follower in sync that hears it tells the primary. If no client has asked the primary either, the primary
*rests*: for seconds it sends nothing of the log, so the others take it for silent, and the follower stands. If it does
not, the primary goes on.

Safety needs none of this: any primary may be silent, and any server may stand, at any time.
"""

from dataclasses import dataclass
from typing import Final

from psserver.replication.state import Replica

#: Seconds without a question after which a primary takes itself for one that no client reaches. Each client asks about
#: twice a second.
UNASKED: Final = 3.0
#: Seconds for which a client's word counts, and between two words of a follower.
COUNTS: Final = 1.0
#: Seconds of a rest: long enough to be taken for silent, and for an attempt and another one; and between two rests.
REST: Final = 3.0
BETWEEN: Final = 30.0


@dataclass(slots=True)
class Reach:
    """What clients have asked one server, and when. `began`: now.

    Times count while this server runs: one that stood still has missed questions that are about to arrive.
    """

    began: float
    # When a client asked last, or this server began to lead.
    _asked: float | None = None
    _missed_epoch: int = -1
    _missed: float = 0.0
    _told: float | None = None
    _rested: float | None = None

    def asked(self, now: float, unreached: int | None) -> None:
        """Note a client's question. `unreached`: the epoch of the primary that it has not reached, if it says so."""
        self._asked = now
        if unreached is not None:
            self._missed_epoch, self._missed = unreached, now

    def look(self, replica: Replica, now: float, *, formed: bool = True) -> None:
        """Let time pass. Call it some ten times a second: nobody is missed by a server that does not lead, or before
        all servers have met (`formed`)."""
        if not replica.leads or not formed:
            self._asked = now

    def tells(self, replica: Replica, now: float) -> bool:
        """Return whether to tell the primary now that clients reach this server and not that one."""
        config = replica.disk.config
        missed = self._missed_epoch == config.epoch and now - self._missed < COUNTS
        follows = replica.in_sync(config) and not replica.sealed and config.primary != replica.server
        if not missed or not follows or (self._told is not None and now - self._told < COUNTS):
            return False
        self._told = now
        return True

    def rests(self, replica: Replica, sender: int, epoch: int, now: float) -> bool:
        """Return whether this server begins to rest, because follower `sender` says that clients reach it alone."""
        config = replica.disk.config
        leads = replica.leads and not replica.sealed and config.epoch == epoch
        if not leads or all(each.server != sender for each in config.members):
            return False
        rested = self._rested is not None and now - self._rested < BETWEEN
        if rested or now - (self.began if self._asked is None else self._asked) < UNASKED:
            return False
        self._rested = now
        return True
