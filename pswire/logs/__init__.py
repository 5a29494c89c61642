"""Logs of daemons: events with stable names, bounded lines, texts made safe to print."""
