"""Engine "ray": an actor for each process of a run, wherever a Ray cluster has room. Needs the extra `ray`.

actor      the two ends of a pipe to a keeper: the actor on a node, and the launcher's handle of it
launcher   the engine: which cluster, placement groups, and actors
"""
