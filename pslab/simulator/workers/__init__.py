"""Simulated workers: each is the loop of a real one as a state machine.

worker        the state machine
surroundings  what it needs of the cluster around it
data          what it works through: its own batches, or those of what it is dealt
"""
