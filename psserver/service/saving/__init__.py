"""Checkpoints of running servers: each writes its part, server 0 completes them; and from which one a job resumes."""
