"""The members of the job: who belongs to it, who comes and goes, and what it waits for them to do."""
