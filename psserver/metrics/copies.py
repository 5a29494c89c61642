"""The run log of a copy of the job, with counters."""

from psserver.metrics.counts import CountedRunLog
from psserver.service.replicas.log import FollowersLog


class CountedFollowersLog(CountedRunLog, FollowersLog):
    """A follower's run log that counts what it has seen since it was made."""
