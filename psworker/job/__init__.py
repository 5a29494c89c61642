"""A user's job: its class and options, the import of its module, and its errors."""

from psworker.job.job import Job, JobError, load_job

__all__ = ["Job", "JobError", "load_job"]
