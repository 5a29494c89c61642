"""The numbers that theory gives for a run: formulas with their sources, and the runs to which they apply.

formulas  expected seconds and staleness, order statistics, upper bounds on the distance from the optimum
measured  measured beside expected, for one run; the bound beside the measured curve, for runs that differ by their seed
"""
