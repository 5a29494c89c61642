"""When a server stands, and when it withholds its promise: what it has heard, and when.

Times are seconds on the server's own monotonic clock: no two clocks need agree, and safety needs none of this. A jump
of a clock costs a change of the configuration at most.
"""

from dataclasses import dataclass, field
from typing import Final

from psserver.replication.messages import Append, Message, Prepare, Stand
from psserver.replication.state import Replica

#: Seconds between two heartbeats; after which a silent server is suspected; that the first two attempts may take. Later
#: ones may take longer, up to LONGEST_ATTEMPT: where answers come late, each shorter one would be given up before them.
HEARTBEAT: Final = 0.25
SILENCE: Final = 1.0
ATTEMPT: Final = 0.5
LONGEST_ATTEMPT: Final = 4.0
#: Seconds after which a primary keeps nothing more for a silent learner. It may be busy with what it gets, a copy costs
#: much, and nobody waits for it.
LEARNER_SILENCE: Final = 5.0
#: The first pause before another attempt, for each partner; it doubles up to LONGEST_PAUSE.
PAUSES: Final = (0.05, 0.15)
LONGEST_PAUSE: Final = 2.0
#: A learner so few items behind is named.
NEAR: Final = 2


@dataclass(slots=True)
class PeerWatch:
    """The knowledge of one server about the others of one log. `began`: now."""

    server: int
    began: float
    primary: int | None = None
    _epoch: int = -1
    _heard: dict[int, float] = field(default_factory=dict)
    _led: dict[int, float] = field(default_factory=dict)
    _broken: set[int] = field(default_factory=set)
    _attempts: int = 0
    _again: float = 0.0

    def alive(self, sender: int, now: float) -> None:
        """Note a sign of life."""
        self._heard[sender] = now
        self._broken.discard(sender)

    def led(self, sender: int, now: float) -> None:
        """Note a sign that a server leads, such as a part of what a heartbeat will name.

        Other messages are none: a primary that was sealed, or started again, sends them too.
        """
        self.alive(sender, now)
        self._led[sender] = now

    def hear(self, sender: int, message: Message, now: float, promised: int = 0) -> None:
        """Note a message, which is a sign of life; a heartbeat also says who leads, unless this server has `promised` a
        later epoch: that primary leads no more, or stands again at once."""
        self.alive(sender, now)
        if isinstance(message, Append) and message.config.epoch >= max(self._epoch, promised):
            self.primary, self._epoch = sender, message.config.epoch
            self.led(sender, now)

    def led_since(self, epoch: int) -> bool:
        """Return whether another server has shown that it leads, in that epoch or a later one."""
        return self._epoch >= epoch

    def broke(self, server: int) -> None:
        """Note that the stream to a server broke: it is silent at once."""
        self._broken.add(server)

    def silent(self, server: int, now: float) -> bool:
        return server in self._broken or now - self._heard.get(server, self.began) > SILENCE

    def leaderless(self, primary: int, now: float) -> bool:
        """Whether that server has not shown for a while that it leads."""
        return primary in self._broken or now - self._led.get(primary, self.began) > SILENCE

    def withholds(self, replica: Replica, sender: int, message: Message, now: float) -> bool:
        """Return whether to leave a candidate without an answer, because the primary is there.

        So one server with a bad link cannot unseat a primary that others hear.
        """
        if not isinstance(message, Prepare) or sender == self.primary:
            return False
        if replica.leads and not replica.sealed:
            others = [each.member for each in replica.progress if each.member in replica.disk.config.members]
            return any(each.server != sender and not self.silent(each.server, now) for each in others)
        return (
            self.primary is not None
            and self.primary != self.server
            and not self.leaderless(self.primary, now)
        )

    def decide(self, replica: Replica, now: float) -> Stand | None:
        """Return an order to stand, if this server should change the configuration. Call it some ten times a second."""
        include = self._wish(replica, now)
        if include is None:
            self._attempts = 0
            return None
        if now < self._again:
            return None
        pause = min(PAUSES[self.server % 2] * 2**self._attempts, LONGEST_PAUSE)
        attempt = min(ATTEMPT * 2 ** (self._attempts // 2), LONGEST_ATTEMPT)
        self._attempts, self._again = self._attempts + 1, now + attempt + pause
        return Stand(include)

    def _wish(self, replica: Replica, now: float) -> tuple[int, ...] | None:
        """Return the copies to include; None if the configuration is as it should be."""
        if replica.leads:
            return self._wish_of_primary(replica, now)
        if replica.standing is not None and replica.sealed:
            return ()
        if not replica.in_sync(replica.disk.config) and replica.synced <= replica.disk.config.epoch:
            # A copy made equal for a configuration that it has not seen may be a member of it: promises will tell.
            return None
        if self.primary in (None, self.server) or replica.sealed:
            since = self._led.get(replica.disk.config.primary, self.began)
            return () if now - since > SILENCE else None
        return () if self.leaderless(self.primary, now) else None

    def _wish_of_primary(self, replica: Replica, now: float) -> tuple[int, ...] | None:
        members = replica.disk.config.members
        others = [each for each in replica.progress if each.member in members]
        # A server that has started again speaks, but its former self never will.
        newest = {each.member.server: each.member for each in replica.progress}
        here = tuple(
            each.member.server
            for each in others
            if each.member == newest[each.member.server]
            and not self.silent(each.member.server, now)
            and each.member not in replica.expelled
        )
        if len(here) < len(others) or replica.sealed or replica.heard > replica.disk.promised:
            return here
        for each in replica.progress:
            caught_up = not each.copying and each.end >= replica.log.end - NEAR
            if each.member not in members and caught_up and not self.silent(each.member.server, now):
                return (*here, each.member.server)
        return None

    def silent_learners(self, replica: Replica, now: float) -> list[int]:
        """Return the learners for which a primary need keep nothing more: they begin anew when they are heard again."""
        members = replica.disk.config.members
        learners = [each.member for each in replica.progress if each.member not in members]
        return [
            each.server
            for each in learners
            if each.server in self._broken or now - self._heard.get(each.server, self.began) > LEARNER_SILENCE
        ]
