"""Experiments in sliders: settings from a page, played by the simulator within a budget.

settings   what there is to choose from; from a page's key-value pairs to an experiment that a visitor may play
play       one simulation: its log as the page draws it, and who waited for whom; "what if": other settings from a
           moment on
pool       processes that play, with a memory of what was played
"""
