"""Runs whose processes are killed, stopped and cut off on purpose, held against what is promised.

campaign  which process, in what way and when, from a seed; when the job has recovered: pure
relay     connections of one worker to one server, which can be cut
running   a local run that is disturbed
verdict   what must hold at the end, and the report
"""
