"""What a job trains on, as batches: its own data, or what it is dealt; a model is built of the first one."""
