"""What is asked for, before anything is made of it."""

import re
from dataclasses import dataclass

from pswire.config.experiment import Experiment

# RFC 1035, as names of Services are: a letter first.
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
# Of Secrets, claims and namespaces (RFC 1123).
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_IMAGE = re.compile(
    r"([a-z0-9]+([.-][a-z0-9]+)*(:[0-9]{1,5})?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
LABEL = 63
# What is put behind a name: "-worker-0-" of a JobSet and its largest index.
_ROOM = len("-worker-0-65535")


class ManifestError(ValueError):
    """No manifest can be made of this; the text says what was expected."""


@dataclass(frozen=True, slots=True)
class Request:
    """A run on Kubernetes.

    `name`: of all objects, with an ending. `namespace`: None leaves it to kubectl. `tls`: the beginning of the names
    of two Secrets, NAME-servers and NAME-workers, with ca.crt, tls.crt and tls.key each. `claim`: the
    PersistentVolumeClaim that keeps run folders; None: they end with their pods. `restarts`: of each worker, and of
    each server where the run takes checkpoints.
    """

    experiment: Experiment
    image: str
    name: str
    namespace: str | None = None
    tls: str | None = None
    claim: str | None = None
    restarts: int = 3

    def __post_init__(self) -> None:
        """Raises ManifestError."""
        _expect(
            _LABEL, "--name", self.name, LABEL - _ROOM, "small letters, digits and dashes, a letter first"
        )
        for option, text in (("--namespace", self.namespace), ("--tls", self.tls), ("--claim", self.claim)):
            if text is not None:
                _expect(
                    _NAME,
                    option,
                    text,
                    LABEL if option == "--namespace" else 200,
                    "small letters, digits, dashes",
                )
        _expect(_IMAGE, "--image", self.image, 500, "an image such as registry.example/paramserver:0.1")

    @property
    def saves(self) -> bool:
        """A server that is lost can be started again, and finds what it had."""
        return bool(self.experiment.run.checkpoint_every) and self.claim is not None

    @property
    def metrics(self) -> bool:
        """Servers have a port for Prometheus."""
        return self.experiment.cluster.metrics

    @property
    def run_folder(self) -> str:
        """In the pods of servers."""
        return f"/runs/{self.name}"


def name_from(text: str) -> str:
    """A run's name as one that Kubernetes takes. Raises ManifestError where nothing is left of it."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    name = name[: LABEL - _ROOM].rstrip("-")
    if name and not name[0].isalpha():
        name = f"ps-{name}"[: LABEL - _ROOM].rstrip("-")
    if not name:
        raise ManifestError(
            f"run.name {text!r} has no letter or digit that a name in Kubernetes may have: give --name"
        )
    return name


def _expect(pattern: re.Pattern[str], option: str, text: str, most: int, form: str) -> None:
    if len(text) > most or not pattern.fullmatch(text):
        raise ManifestError(f"{option}: expected at most {most} characters, {form}; got {text!r}")
