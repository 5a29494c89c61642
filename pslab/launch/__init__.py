"""From an experiment file to a finished run: local processes, or the simulated cluster."""
