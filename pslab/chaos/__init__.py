"""Runs whose processes are killed, stopped and cut off on purpose, and the checks of what must hold nevertheless.

campaign  which process is disturbed, how and when, from a seed; and when the job has recovered. Pure
running   a local run that is disturbed, with connections that can be cut
verdict   what must hold at the end, and the report
"""
