"""Random schedules: drawn, played, searched, and cut down to the shortest that shows a fault."""
