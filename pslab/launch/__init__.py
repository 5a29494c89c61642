"""Runs of experiments: as processes on an engine, or on the simulated cluster."""
