"""Tickets: their table, and the requests and commits of members."""
