"""A promise about `weights.safetensors`: it holds the weights whose fingerprint the summary has."""

from collections.abc import Iterator
from pathlib import Path

from pslab.check.ledger import Ledger
from pslab.check.promise import LogCheck
from psserver.weights_file import Saved, WeightsFileError, load


class WeightsAgree(LogCheck):
    """The fingerprint of weights.safetensors is the summary's weights_sha256."""

    name = "final weights"

    def __init__(self, path: Path, recorded: str | None) -> None:
        """`recorded`: None for a job that came to no weights, or looked at time only."""
        self._path, self._recorded = path, recorded
        self._uncertain = False

    def finish(self, ledger: Ledger) -> Iterator[str]:
        if not self._path.is_file():
            if self._recorded is not None:
                yield f"summary.json has the weights_sha256 {self._recorded}, but {self._path.name} is missing"
        elif self._recorded is None:
            yield f"{self._path.name} exists, but summary.json has no weights_sha256"
        else:
            try:
                yield from self._compare(load(self._path), self._recorded)
            except (WeightsFileError, OSError) as error:
                yield f"{self._path.name} cannot be read: {error}"

    def _compare(self, saved: Saved, recorded: str) -> Iterator[str]:
        found = saved.sha256()
        self._uncertain = found is None
        if found is not None and found != recorded:
            yield f"summary.json has the weights_sha256 {recorded}, {self._path.name} has {found}"

    def remarks(self, ledger: Ledger) -> Iterator[str]:
        if self._uncertain:
            yield (
                f"{self._path.name} does not tell the order of its variables (an older version wrote it):"
                " it was not compared with weights_sha256"
            )
