"""Tables of runs, for a terminal and as JSON."""
