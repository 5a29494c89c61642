"""Who belongs to the job, who comes and goes, and what the job waits for a member to do."""
