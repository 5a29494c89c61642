"""Generations of a job: each time its servers restart from a checkpoint, the job gets another name.

"1f0c9a2b7d3e4c55" is a job's first generation, "1f0c9a2b7d3e4c55.2" its third. What an earlier generation decided after
the checkpoint from which a later one continues is void; members of an earlier generation are refused.
"""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of a job. `number`: from 0."""

    job: str
    number: int = 0

    @classmethod
    def named(cls, name: str) -> Self:
        """Parse a name. Any text is one; a text that does not end in a number is a first generation."""
        job, dot, number = name.rpartition(".")
        if dot and job and number.isascii() and number.isdecimal() and len(number) <= 9 and int(number):
            return cls(job, int(number))
        return cls(name)

    @property
    def name(self) -> str:
        """The name in messages and in the log."""
        return f"{self.job}.{self.number}" if self.number else self.job

    def follows(self, other: "Generation") -> bool:
        """Return True if this is a later generation of the same job."""
        return self.job == other.job and self.number > other.number


def same_job(one: str, other: str) -> bool:
    """Return True if these name the same job, in any generations."""
    return Generation.named(one).job == Generation.named(other).job


def follows(name: str, other: str) -> bool:
    """Return True if `name` is a later generation of the job named `other`."""
    return Generation.named(name).follows(Generation.named(other))
