"""Runs whose processes are killed, stopped and cut off on purpose, and the checks of what must hold nevertheless.

campaign     which process is disturbed, how and when, from a seed; and when the job has recovered. Pure
copies       the same for a job with replicas: one server after the other. Pure
running      a local run that is disturbed, with connections that can be cut
verdict      what must hold at the end, and the report
one_history  what must hold with replicas, too
"""
