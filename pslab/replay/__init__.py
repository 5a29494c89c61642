"""A finished run once more, in one process, from its decision log.

The servers' own code executes every decision, and the run's own job computes every gradient again, from the version
that its ticket was granted. Data is a function of (worker index, batch number), so the result is exact.

    schedule        the log as records; and what happened to workers, without the policy's decisions
    worker_replica  one worker's batches and random stream
    execution       the shell: entries in, weights out, the first difference found
    run_folder      from a run folder to a replay; the proof; one version written out
    whatif          another policy on the same schedule
    view            both, for people and for programs
"""

from pslab.replay.execution import Difference, Replay, Replayed
from pslab.replay.whatif import Alternative, what_if

__all__ = ["Alternative", "Difference", "Replay", "Replayed", "what_if"]
