"""A finished run once more, in one process, from its decision log.

The servers' own code executes every decision, and the run's own job computes every gradient again, from the version
that its ticket was granted. Data is a function of (worker index, batch number), so the result is exact.

    records         the log as records
    worker_replica  one worker's batches and random stream
    execution       the shell: entries in, weights out, the first difference found
    run_folder      from a run folder to a replay; the proof
    view            its result, for people and for programs
"""

from pslab.replay.execution import Difference, Replay, Replayed

__all__ = ["Difference", "Replay", "Replayed"]
