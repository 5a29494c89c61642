"""What stands behind the ps-worker command."""
