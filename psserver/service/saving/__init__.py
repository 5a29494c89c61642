"""Checkpoints of running servers: each writes its part, server 0 completes them; and how a job goes on from one."""
