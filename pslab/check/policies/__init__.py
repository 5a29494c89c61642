"""What the checker knows of each built-in policy, independent of the code of the policies.

`known` has one entry per policy and nothing else; `terms` compares a log with an entry; `guarantee` chooses
the entry by the log's first line.
"""
