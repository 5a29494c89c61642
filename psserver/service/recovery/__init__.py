"""A lost server does not end the job: the others begin again from what is saved, and wait for it."""
