"""Numbers kept back: what follows from the facts about versions that are not wholly new."""

from dataclasses import dataclass, field
from typing import Final

from psserver.coordinator.inputs import Executed
from psserver.coordinator.roster import named
from psserver.decisions import entries

# A considerable share of the elements of an update. A healthy job may have a saturated element; this is more.
SHARE: Final = 1e-4
# Versions whose fact has not come, of which the workers are remembered.
UNTOLD: Final = 1024


@dataclass(slots=True)
class KeptBack:
    """The elements of all versions that keep their old values, because their new ones would not be finite.

    `told`: the newest version that the shards have told about. `elements`, `versions`: how many elements, in how many
    versions. `variable`, `newest`: the variable with most of them in the newest such version. `row`: how many versions
    in a row have a considerable share of their elements kept back; `workers`: whose contributions these were made of.
    `makers`: the workers of versions that were not told about yet.
    """

    told: int = -1
    elements: int = 0
    versions: int = 0
    variable: str = ""
    newest: int = 0
    row: int = 0
    workers: list[str] = field(default_factory=list)
    makers: dict[int, list[str]] = field(default_factory=dict)

    def made(self, version: int, workers: list[str]) -> None:
        """Remember of whose contributions a version is made."""
        if len(self.makers) >= UNTOLD:
            del self.makers[next(iter(self.makers))]
        self.makers[version] = workers

    def take(self, fact: Executed) -> entries.Nonfinite | None:
        """Take the fact about the next version. Return the entry for it, if anything was kept back."""
        self.told = fact.version
        workers = self.makers.pop(fact.version, [])
        if not fact.kept:
            self.row, self.workers = 0, []
            return None
        self.elements, self.versions = self.elements + fact.kept, self.versions + 1
        self.variable, self.newest = fact.variable, fact.version
        if fact.whole or fact.kept >= SHARE * fact.elements:
            self.row, self.workers = self.row + 1, list(dict.fromkeys([*self.workers, *workers]))
        else:
            self.row, self.workers = 0, []
        return entries.Nonfinite(fact.version, fact.kept, fact.variable, tuple(dict.fromkeys(workers)))

    def go_on(self, version: int) -> None:
        """Continue behind a version that was saved: nothing more will be told about it, nor about any before."""
        if self.told < version:
            # Whether more versions in a row had much kept back is not known.
            self.row, self.workers = 0, []
        self.told = version
        self.makers.clear()

    def sentence(self) -> str:
        """Say how much was kept back so far; empty if nothing was."""
        if not self.elements:
            return ""
        elements = "1 element" if self.elements == 1 else f"{self.elements} elements"
        versions = f"version {self.newest}" if self.versions == 1 else f"{self.versions} versions"
        return (
            f"{elements} in {versions} kept their old values, because the new ones would not be finite; in version "
            f"{self.newest} most were of {self.variable}"
        )

    def diverged(self, limit: int) -> str:
        """Return why the job ends, if `limit` versions in a row are reached; else an empty text."""
        if self.row < limit:
            return ""
        versions = "an update" if self.row == 1 else f"{self.row} updates in a row"
        came = f", came from {named(self.workers)}" if self.workers else ""
        return (
            f"{versions} left much of the model as it was, because its new numbers would not be finite ({limit} are "
            f"the limit; in version {self.newest} most were of {self.variable}); the gradients, which were "
            f"finite{came}: the learning rate may be too high, or a worker sends what it should not"
        )
