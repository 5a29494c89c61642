"""Charts of runs, drawn by matplotlib."""
