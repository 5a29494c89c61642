"""Simulated workers: each is the loop of a real one as a state machine.

worker        the state machine
data          what it works through: its own batches, or those of what it is dealt; what it needs around it
"""
