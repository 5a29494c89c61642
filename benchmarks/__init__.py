"""Measurements side by side: this parameter server, TensorFlow's, and what the machine can do at all.

Run `scripts/bench --help`. Every peer is a set of processes of its own; they
take turns on the machine, a burst of steps each, so that a slow minute of the
machine is a slow minute for all of them.
"""
