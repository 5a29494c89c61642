"""Runs beside each other: what a policy costs and gives, over seeds; and what the simulator had predicted.

groups          the numbers of one run; runs that differ by their seed only, with mean and spread
timeline        what each worker did when: compute, communicate, wait
sweep           the experiments of a sweep; runs them, and keeps what is finished
predict         measured step times of a run; the same experiment in the simulator, several times, against the run
group_table     groups as a table, as CSV and as JSON
expected_table  theory and prediction beside the measured numbers, as tables and as JSON
charts/         the pictures, and one chart as a file
"""
