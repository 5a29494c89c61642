"""Advice on which policy to run: what is swept on the simulator, and which of it is the first choice."""
