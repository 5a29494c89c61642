"""Does a policy keep the contract? Random schedules through the real coordinator; the shortest that shows a fault.

A *schedule* is a list of acts ("w0 joins", "w0 commits", "0.4 seconds pass"): the lines at the margin of a
golden trace.

    schedules     draws schedules, plays them again from their acts, searches for faults, cuts them down
    harness       a coordinator on a clock of its own, told what its workers do
    client        a worker of the schedule, on the engine of the real one
    adversarial   messages that must change nothing
    invariants    what holds after every step, and what the policy's facts promise
    shard         a real shard that executes the log
    trace_format  a schedule as text
"""
