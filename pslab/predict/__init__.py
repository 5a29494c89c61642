"""Predictions: numbers of a run, or of an experiment before it is run, beside a simulation and beside theory."""
