"""Runs beside each other: what a policy costs and gives, over seeds; and what the simulator had predicted.

measure     the numbers of one run
groups      runs of the same experiment but for the seed, with mean and spread
table       the groups, for people and for programs
grid        the experiments of a sweep
sweep       runs them, and keeps what is finished
pace        how long the steps of a run took, injected delays taken off
predict     the same experiment in the simulator, several times, against the real run
predictview the two beside each other, for people and for programs
curves      loss over time, versions and samples; who held a ticket when
charts      the pictures of a report
theorycharts, theorytable   what formulas say, beside what was measured
best        each policy with the setting that suits it best
pictures    one chart as a file
html        a report that is one file
"""
