"""Generations of a job: each time that its servers begin again from what is saved, the job gets another name.

"1f0c9a2b7d3e4c55" is a job's first generation, "1f0c9a2b7d3e4c55.2" its third. What an earlier one decided behind the
checkpoint from which a later one goes on is void; whoever still belongs to an earlier one is refused.
"""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Generation:
    """`number`: from 0."""

    job: str
    number: int = 0

    @classmethod
    def named(cls, name: str) -> Self:
        """Any text is a name: one that does not end in a number is a first generation."""
        job, dot, number = name.rpartition(".")
        if dot and job and number.isascii() and number.isdecimal() and len(number) <= 9 and int(number):
            return cls(job, int(number))
        return cls(name)

    @property
    def name(self) -> str:
        """What messages and the log call it."""
        return f"{self.job}.{self.number}" if self.number else self.job

    def follows(self, other: "Generation") -> bool:
        """It is a later one of the same job."""
        return self.job == other.job and self.number > other.number


def follows(name: str, other: str) -> bool:
    """The job of that name is a later generation of the `other`."""
    return Generation.named(name).follows(Generation.named(other))
