"""Runs whose processes are killed, stopped and cut off on purpose, held against what is promised.

plan      which process, in what way, after how many versions: from a seed
campaign  when it is time, and when the job has recovered: pure, from what the coordinator says
relay     connections of one worker to one server, which can be cut
running   a local run that is disturbed
verdict   what must hold at the end, and the report
"""
