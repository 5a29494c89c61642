"""A validated request for manifests."""

import re
from dataclasses import dataclass

from pswire.config.experiment import Experiment

# Names of Services (RFC 1035): a letter first.
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
# Names of Secrets, claims and namespaces (RFC 1123).
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_IMAGE = re.compile(
    r"([a-z0-9]+([.-][a-z0-9]+)*(:[0-9]{1,5})?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
LABEL = 63
# Longest suffix of a name: "-worker-0-" of a JobSet and its largest index.
_ROOM = len("-worker-0-65535")


class ManifestError(ValueError):
    """A request is invalid; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Request:
    """A run on Kubernetes.

    `name`: prefix of all object names. `namespace`: None for kubectl's current one. `tls`: prefix of the names of two
    Secrets, NAME-servers and NAME-workers, with ca.crt, tls.crt and tls.key each. `claim`: PersistentVolumeClaim for
    run folders; without one, they are lost with their pods. `restarts`: of each worker, and of each server if it can
    come back.
    """

    experiment: Experiment
    image: str
    name: str
    namespace: str | None = None
    tls: str | None = None
    claim: str | None = None
    restarts: int = 3

    def __post_init__(self) -> None:
        """Check the request. Raises ManifestError."""
        _expect(
            _LABEL,
            "--name",
            self.name,
            LABEL - _ROOM,
            "lower-case letters, digits and dashes, a letter first",
        )
        for option, text in (("--namespace", self.namespace), ("--tls", self.tls), ("--claim", self.claim)):
            if text is not None:
                _expect(
                    _NAME,
                    option,
                    text,
                    LABEL if option == "--namespace" else 200,
                    "lower-case letters, digits and dashes",
                )
        _expect(_IMAGE, "--image", self.image, 500, "an image such as registry.example/paramserver:0.1")
        if self.copies and self.claim is None:
            raise ManifestError(
                "cluster.replicas = 2: expected --claim, with a volume that all servers can write to: "
                "another server goes on with the log there"
            )

    @property
    def comes_back(self) -> bool:
        """Whether a lost server can restart: it finds its state, or another one has it."""
        return self.copies or (bool(self.experiment.run.checkpoint_every) and self.claim is not None)

    @property
    def copies(self) -> bool:
        """Whether two servers have copies of the job."""
        return self.experiment.cluster.replicas > 1

    @property
    def metrics(self) -> bool:
        """Whether servers have a port for Prometheus."""
        return self.experiment.cluster.metrics

    @property
    def run_folder(self) -> str:
        """Path of the run folder in the pods of servers."""
        return f"/runs/{self.name}"


def name_from(text: str) -> str:
    """Convert a run's name into a valid name for Kubernetes. Raises ManifestError if nothing is left of it."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    name = name[: LABEL - _ROOM].rstrip("-")
    if name and not name[0].isalpha():
        name = f"ps-{name}"[: LABEL - _ROOM].rstrip("-")
    if not name:
        raise ManifestError(
            f"run.name: expected letters or digits that Kubernetes permits in a name, got {text!r}: give --name"
        )
    return name


def _expect(pattern: re.Pattern[str], option: str, text: str, most: int, form: str) -> None:
    if len(text) > most or not pattern.fullmatch(text):
        raise ManifestError(f"{option}: expected at most {most} characters, {form}; got {text!r}")
