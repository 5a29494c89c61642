"""Checks that a decision log keeps what the servers guarantee. One small class per property, all run in one pass.

`check_run(Run(path))` or `check_log(read_log(lines))` returns a `CheckResult` that lists every violation. Each check
compares an entry with the `pslab.runs.fold` of the entries before it. No code is shared with the coordinator, and of a
policy only what it declares.

checker        runs all checks over a log; the result for people and for programs
log_check      their base class
ordering, members, tickets, updates, run_files    what holds under every policy
guarantee      what the policy promises, as its `facts` say
conservation   the law of the conservation of staleness
"""

from pslab.check.log_check import LogCheck, Violation

__all__ = ["LogCheck", "Violation"]
