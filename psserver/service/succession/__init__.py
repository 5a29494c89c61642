"""Servers that stay take one job after another."""
