"""A finished run once more, in one process, from its decision log.

What is exact: every decision is executed by the servers' own order translation and
shards, every gradient is computed anew by the run's own job from the version
that its ticket was granted. Data is a function of (worker index, batch number).

    log_entries     the log as the entries that shards execute
    worker_replica  one worker's batches and random stream
    execution       the shell: entries in, weights out, the first difference found
    run_folder      from a run folder to a replay; the proof; one version written out
    schedule        the log as what happened to workers, without the policy's decisions
    whatif          another policy on the same schedule
    view            both, for people and for programs
"""

from pslab.replay.execution import Difference, Replay, Replayed
from pslab.replay.whatif import Alternative, what_if

__all__ = ["Alternative", "Difference", "Replay", "Replayed", "what_if"]
