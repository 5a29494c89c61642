"""What is asked for, and its objects.

A template is YAML with holes ${name}, which take text or JSON, which is YAML. A line that ends in "#if" and facts is
kept where all of them hold; a fact with "!" must not hold.
"""

import json
import re
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from textwrap import indent

from pslab.experiment import Experiment
from pswire.exits import ExitCode

# The spaces before the specification of a Job, by kind.
KINDS = {"jobs": 2, "jobset": 10}
# New pods of a process that may come back.
RESTARTS = 3
_LABEL, _NAME = "[a-z]([-a-z0-9]*[a-z0-9])?", "[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_IMAGE = r"[a-z0-9][-\w./:@]*"
# The longest host name, of a JobSet's last worker, has at most 63 characters.
_LONGEST = 63 - len("-worker-0-65535")


class ManifestError(ValueError):
    """A request is invalid; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class ManifestRequest:
    """A run on Kubernetes. `tls`: the Secrets are NAME-servers and NAME-workers. `claim`: volume of the run folders."""

    experiment: Experiment
    image: str
    kind: str = "jobs"
    tls: str | None = None
    claim: str | None = None

    def __post_init__(self) -> None:
        """Check the request. Raises ManifestError."""
        name = self.experiment.run.name
        _expect(
            _LABEL,
            "run.name",
            name,
            _LONGEST,
            "lower-case letters, digits and dashes, a letter first (--set run.name=NAME)",
        )
        _expect(_IMAGE, "--image", self.image, 500, "an image such as registry.example/paramserver:0.1")
        for option, text in (("--tls", self.tls), ("--claim", self.claim)):
            _expect(_NAME, option, "x" if text is None else text, 200, "lower-case letters, digits, dashes")
        if self.copies and self.claim is None:
            raise ManifestError(
                "cluster.replicas = 2: expected --claim, with a volume that all servers can write to: "
                "another server goes on with the log there"
            )

    @property
    def copies(self) -> bool:
        """Whether two servers have copies of the job."""
        return self.experiment.cluster.replicas > 1

    @property
    def comes_back(self) -> bool:
        """Whether a lost server can restart: it finds its state, or another one has it."""
        return self.copies or (bool(self.experiment.run.checkpoint_every) and self.claim is not None)

    def text(self) -> str:
        """Return the objects as YAML."""
        pad = " " * KINDS[self.kind]
        specs = {role: indent(self._filled("job", role), pad).strip() for role in ("ps", "worker")}
        return "".join(self._filled(name, "ps", **specs) for name in ("objects", self.kind))

    def _filled(self, name: str, role: str, **more: str) -> str:
        facts, kept = self._facts(role), list[str]()
        template = files("pslab.manifests").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
        for line in template.splitlines():
            text, _, conditions = line.partition("  #if ")
            if all((fact.lstrip("!") in facts) != fact.startswith("!") for fact in conditions.split()):
                kept.append(f"{text}\n")
        return Template("".join(kept)).substitute(self._values(role), **more)

    def _facts(self, role: str) -> set[str]:
        cluster, worker = self.experiment.cluster, role == "worker"
        found = {
            "tls": self.tls is not None,
            "claim": self.claim is not None,
            "copies": self.copies,
            "metrics": cluster.metrics,
            "spread": cluster.place.servers.spread,
            "back": worker or self.comes_back,
            "script": worker and bool(self.experiment.job.script),
        }
        return {role, *(name for name, holds in found.items() if holds)}

    def _values(self, role: str) -> dict[str, str]:
        name, job, cluster = self.experiment.run.name, self.experiment.job, self.experiment.cluster
        servers, stem = role == "ps", f"{name}-ps" if self.kind == "jobs" else f"{name}-ps-0"
        return {
            "name": name,
            "labels": f'app.kubernetes.io/name: paramserver, app.kubernetes.io/instance: "{name}"',
            "toml": _json(self.experiment.to_toml()),
            "stay": str(cluster.servers - self.copies if self.copies or not self.comes_back else 0),
            "role": role,
            "title": "server" if servers else "worker",
            "count": str(cluster.servers if servers else cluster.workers),
            "restarts": str(RESTARTS if self.comes_back or not servers else 0),
            "final": _json(self._final(copies=servers and self.copies)),
            "image": _json(self.image),
            "hosts": ",".join(f"{stem}-{index}.{name}:7070" for index in range(cluster.servers)),
            "script": _json([job.script, *job.arguments])[1:-1],
            "wire": _json(cluster.wire_dtype),
            "transport": _json(cluster.transport),
            "resources": _json(self._resources(servers=servers)),
            "claim": self.claim or "",
            "tls": self.tls or "",
        }

    def _final(self, *, copies: bool) -> list[int]:
        """Return the exit codes after which the same command would fail in the same way.

        `copies`: of servers with replicas. One that was replaced while it stood still (5) is given a copy.
        """
        passing = {ExitCode.OK, ExitCode.INTERRUPTED, ExitCode.TERMINATED} | (
            {ExitCode.REFUSED} if copies else set()
        )
        return [int(code) for code in ExitCode if not code.restart and code not in passing]

    def _resources(self, *, servers: bool) -> dict[str, dict[str, str]]:
        """Return requests and limits. The memory is also a limit, so that an excess is visible."""
        place = self.experiment.cluster.place
        wants = {"cpu": place.servers.cpus, "memory": place.servers.bytes}
        limits = {"memory": place.servers.bytes}
        if not servers:
            wants, limits = {"cpu": place.workers.cpus}, {"nvidia.com/gpu": place.workers.gpus}
        found = {"requests": wants, "limits": limits}
        return {name: {key: str(n) for key, n in table.items() if n} for name, table in found.items()}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _expect(pattern: str, option: str, text: str, most: int, form: str) -> None:
    if len(text) > most or not re.fullmatch(pattern, text):
        raise ManifestError(f"{option}: expected at most {most} characters, {form}; got {text!r}")
