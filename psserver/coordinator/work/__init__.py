"""Data as work units: ranges of samples, files or batches that the coordinator deals to workers as they come."""
