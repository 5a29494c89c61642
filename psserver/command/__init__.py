"""What stands behind the ps-server command."""
