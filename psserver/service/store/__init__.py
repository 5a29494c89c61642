"""One shard among threads: pushes, reads, execution of orders, its part of checkpoints, where a job resumes."""
