"""Runs beside each other: what a policy costs and gives, over seeds.

groups       the numbers of one run; runs that differ by their seed only, with mean and spread
timeline     what each worker did when: compute, communicate, wait
sweep        the experiments of a sweep; runs them, and keeps what is finished
group_table  groups as a table, as CSV and as JSON
charts/      the pictures, and one chart as a file
"""
