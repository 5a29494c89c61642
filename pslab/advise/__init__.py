"""Advice on which policy to run: candidate policies are simulated, and ranked by their time to a goal."""
