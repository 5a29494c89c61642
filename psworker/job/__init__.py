"""A user's job: the class that describes it, how its module is found, its options, and its errors."""

from psworker.job.job import Job, JobError, load_job

__all__ = ["Job", "JobError", "load_job"]
