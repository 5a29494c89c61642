"""Does a policy keep the contract? Random schedules through the real coordinator; the shortest that shows a fault.

A *schedule* is a list of acts ("w0 joins", "w0 commits", "0.4 seconds pass"): the lines at the margin of a
golden trace. It is drawn by chance (`schedule`), guarded step by step (`invariants`, `servers`), played again
from its acts (`play`), cut down (`shrink`) and told (`trace`).
"""
