"""Manifests for tests."""

from typing import Any

from pslab.manifests.jobs import jobset, plain
from pslab.manifests.request import Request
from pswire.config.experiment import Experiment, parse_experiment

KINDS = {"jobs": plain, "jobset": jobset}
IMAGE = "registry.example:5000/team/digits:1.2"


def experiment(servers: int = 2, workers: int = 3, **sections: Any) -> Experiment:
    document = {"run": {"name": "digits"}, "job": {"module": "my_job.py:MyJob"}, **sections}
    cluster = {"servers": servers, "workers": workers, **document.get("cluster", {})}
    return parse_experiment({**document, "cluster": cluster})


def request(servers: int = 2, workers: int = 3, sections: Any = None, **given: Any) -> Request:
    return Request(experiment(servers, workers, **(sections or {})), IMAGE, "digits", **given)


def manifest(kind: str, *arguments: Any, **given: Any) -> list[dict[str, Any]]:
    return KINDS[kind](request(*arguments, **given))
