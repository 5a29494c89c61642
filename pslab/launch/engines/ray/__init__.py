"""Engine "ray": an actor for each process of a run, wherever a Ray cluster has room. Needs the extra `ray`.

cluster    which cluster a run uses: an existing one, or one made on this machine for the run
actor      the two ends of a pipe to a keeper: the actor on a node, and the launcher's handle of it
launcher   the engine: placement groups and actors
"""
