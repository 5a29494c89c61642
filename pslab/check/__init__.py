"""Does a decision log say what the servers guarantee? One small class per check, all run in one pass.

`check_run(Run(path))` or `check_log(read_log(lines))` gives a `CheckResult` that lists every violation. Each check
compares an entry with what the log says before it, the `pslab.runs.fold`, which shares nothing with the coordinator or
the policies.

checker        runs all checks over a log; a result for people and for programs
log_check      their base class
checks/        what holds whatever the policy
policies/      what each policy guarantees
conservation   the law of the conservation of staleness
"""

from pslab.check.log_check import LogCheck, Violation

__all__ = ["LogCheck", "Violation"]
