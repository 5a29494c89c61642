"""Run folders: what a run leaves behind, its decision log, and the report of it."""
