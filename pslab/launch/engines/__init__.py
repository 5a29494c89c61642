"""Engines: where the processes of a run are started. One interface, one table, one module for each engine.

launcher    what a run asks of an engine, and the log and events of a process's output
registry    the engines by name
local       processes on this machine
ray         actors of a Ray cluster
slurm       steps of an allocation; a batch job that runs ps-lab
ssh         machines that accept a login

`pslab.launch.remote` is the base of those that start processes on other nodes.
"""
