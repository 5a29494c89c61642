"""The parameter server: policies decide, the coordinator records, shards execute.

`ps-server` is the program. A user's code needs two packages: `psserver.policies` to write a policy, and
`psserver.optimizers` for the update rules.
"""

__all__ = ["optimizers", "policies"]
