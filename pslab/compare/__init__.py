"""Runs beside each other: what a policy costs and gives, over seeds.

groups       the numbers of one run; runs that differ by their seed only, with mean and spread
sweep        the experiments of a sweep; runs them, and keeps what is finished
halving      successive halving of the settings of a sweep
group_table  groups as a table and as JSON
charts/      pictures from pandas frames, and one chart as a file
"""
