"""Does a policy keep the contract? Random schedules through the real coordinator; the shortest that shows a fault.

A *schedule* is a list of acts ("w0 joins", "w0 commits", "0.4 seconds pass"): the unindented lines of a golden trace.

    schedule      draws acts, and plays each at once
    guarded       plays acts; every step is checked, and executed by a real shard
    search        searches for faults, and shrinks the schedule that shows one
    harness       a coordinator with a clock of its own, and a method for each act
    invariants    what holds after every step: all that `ps-lab check` checks, and the coordinator's own counts
    trace_format  a schedule as text
"""
