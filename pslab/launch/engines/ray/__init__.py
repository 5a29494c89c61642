"""Engine "ray": an actor for each process of a run, wherever a Ray cluster has room. Needs the extra `ray`.

options    which cluster is meant, before Ray is loaded; what is wanted and what there is, in words
nodes      a process that is a whole cluster on this machine, for teaching and for tests
actor      what runs on a node: the other end of a pipe to a keeper
launcher   the engine, and its end of a pipe to a keeper
"""
