"""ps-lab: run an experiment, watch it, check its decision log, compare runs."""

__all__ = ["check", "replay", "simulator"]
