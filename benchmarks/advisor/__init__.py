"""The advisor against reality: what `ps-lab advise` predicts of real processes, and what they measure.

protocol.md  written before the first measurement: shapes, runs, what is wanted
problem      what the workers learn, in numpy: the simulator and real workers compute the same gradients
shapes       the five clusters
worker       a real worker whose steps take the time of its shape
measure      advice from one run, then real runs of the choices in turn; resumable
report       the tables
"""
