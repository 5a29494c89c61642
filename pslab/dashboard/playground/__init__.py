"""Experiments with sliders: settings from a page, simulated within a budget.

settings   the choices that a page offers, and its key-value pairs as an experiment that a visitor may run
play       one simulation as the rows that the page draws
pool       processes that simulate, and a cache of results
"""
