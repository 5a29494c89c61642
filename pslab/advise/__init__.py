"""Advice on which policy to run: the shelf is played on the simulator, and judged by the time to a goal."""
