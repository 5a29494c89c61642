"""What theory says about a run, as numbers: formulas with their sources, and the runs to which they apply.

order       means of order statistics
times       expected seconds per version
ages        expected and largest staleness
bounds      upper bounds on the distance from the optimum, and the largest stable learning rate
steady      the part of a run that the formulas speak of
claims      measured beside expected, for one run
curves      the bound beside the measured curve, for runs that differ by their seed
"""
