"""Is a decision log what the servers promise? One small class per promise, all run in one pass.

`check_run(Run(path))` or `check_log(entries.read(lines))` gives a `Verdict` that lists every violation.
"""

from pslab.check.promise import LogCheck, Violation

__all__ = ["LogCheck", "Violation"]
