"""Where the processes of a run are started: the seam, its table, and one module for each engine.

launcher    what a run asks of an engine; what a process prints: its log, and the run's events
registry    the engines by name
local       processes on this machine
placement   which process is on which node
nodes       what engines with nodes share
ray         actors of a Ray cluster
slurm       steps of an allocation; a batch job that runs ps-lab
ssh         machines that take a login
"""
