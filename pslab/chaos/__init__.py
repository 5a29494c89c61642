"""Runs whose processes are killed, stopped and cut off on purpose, held against what is promised.

campaign  which process, in what way and when, from a seed; when the job has recovered: pure
running   a local run that is disturbed, with connections that can be cut
verdict   what must hold at the end, and the report
"""
