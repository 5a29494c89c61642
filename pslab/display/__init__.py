"""Views for people and programs: a run in progress, its outcome, and a coordinator's status."""
