"""Runs beside each other: what a policy costs and gives, over seeds; and what the simulator had predicted.

measure     the numbers of one run
groups      runs of the same experiment but for the seed, with mean and spread; the best setting of each policy
timeline    loss over time; holding a ticket, computing, waiting and communicating of each worker
sweep       the experiments of a sweep; runs them, and keeps what is finished
predict     how long the steps of a run took; the same experiment in the simulator, several times, against the run
tables/     all of it for a terminal and as JSON
charts/     the pictures, and one chart as a file
html        a report that is one file
"""
