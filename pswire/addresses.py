"""Where processes are: `host:port` lists and TF_CONFIG."""

import json
import re
from dataclasses import dataclass
from typing import Literal

from pswire.nearest import did_you_mean

_HOST = re.compile(r"[A-Za-z0-9._-]+")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")


class AddressError(ValueError):
    """A list of addresses or TF_CONFIG that cannot be understood; names the part that is wrong."""


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP endpoint. `port` 0 asks the system for a free one; IPv6 hosts are kept without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TfCluster:
    """What TF_CONFIG says, with a chief, if any, as the first of `workers`."""

    ps: tuple[Address, ...]
    workers: tuple[Address, ...]
    task_type: Literal["ps", "worker"]
    task_index: int


def parse_address(text: str) -> Address:
    """`host:port` or `[ipv6]:port`. Raises AddressError."""
    stripped = text.strip()
    host, colon, port = stripped.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise AddressError(f"expected host:port, got {text!r}; write an IPv6 address in brackets: [::1]:7070")
    if bracketed:
        host = host[1:-1]
    if not colon or not (_IPV6 if bracketed else _HOST).fullmatch(host):
        raise AddressError(f"expected host:port, got {text!r}")
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise AddressError(f"expected a port from 0 to 65535 after the last colon, got {port!r} in {text!r}")
    return Address(host, int(port))


def parse_hosts(text: str) -> tuple[Address, ...]:
    """A comma-separated list of addresses, in task order.

    Raises AddressError when it is empty, when an entry is not `host:port`, or
    when an address (other than one with port 0) occurs twice.
    """
    if not text.strip():
        raise AddressError("expected addresses such as h0:7070,h1:7070, got nothing")
    addresses = tuple(parse_address(part) for part in text.split(","))
    _refuse_duplicates(addresses)
    return addresses


def _refuse_duplicates(addresses: tuple[Address, ...]) -> None:
    for index, address in enumerate(addresses):
        if address.port and address in addresses[:index]:
            raise AddressError(f"{address} is listed twice; each server needs its own address")


def cluster_from_tf_config(text: str) -> TfCluster:
    """Read the value of the TF_CONFIG environment variable.

    A chief is a worker here: it becomes worker 0 and the others move up by
    one. An evaluator is refused: the servers choose a worker to evaluate.
    Raises AddressError, naming the key that is wrong.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AddressError(f"TF_CONFIG: expected JSON, got {text[:80]!r} ({error})") from error
    cluster = _table(config, "cluster")
    known = ("ps", "worker", "chief")
    for kind in cluster:
        if kind == "evaluator":
            raise AddressError("TF_CONFIG: cluster.evaluator is not supported; remove it, a worker evaluates")
        if kind not in known:
            raise AddressError(f"TF_CONFIG: cluster.{kind} is unknown{did_you_mean(kind, known)}")
    ps, chief, workers = (_addresses(cluster, kind) for kind in ("ps", "chief", "worker"))
    for kind, found in (("ps", ps), ("worker", chief + workers)):
        if not found:
            raise AddressError(f"TF_CONFIG: cluster.{kind} is missing; expected a list of host:port")
    if len(chief) > 1:
        raise AddressError(f"TF_CONFIG: cluster.chief: expected one address, got {len(chief)}")
    task_type, task_index = _task(_table(config, "task"), {"ps": ps, "chief": chief, "worker": workers})
    return TfCluster(ps, chief + workers, task_type, task_index)


def _table(config: object, key: str) -> dict[str, object]:
    value = config.get(key) if isinstance(config, dict) else None
    if not isinstance(value, dict):
        raise AddressError(f"TF_CONFIG: {key}: expected an object, got {json.dumps(value)[:80]}")
    return value


def _addresses(cluster: dict[str, object], kind: str) -> tuple[Address, ...]:
    entries = cluster.get(kind, [])
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        got = json.dumps(entries)[:80]
        raise AddressError(f"TF_CONFIG: cluster.{kind}: expected a list of host:port, got {got}")
    try:
        addresses = tuple(parse_address(entry) for entry in entries)
        _refuse_duplicates(addresses)
    except AddressError as error:
        raise AddressError(f"TF_CONFIG: cluster.{kind}: {error}") from error
    return addresses


def _task(
    task: dict[str, object], addresses: dict[str, tuple[Address, ...]]
) -> tuple[Literal["ps", "worker"], int]:
    kind, index = task.get("type"), task.get("index", 0 if task.get("type") == "chief" else None)
    if kind == "evaluator":
        raise AddressError('TF_CONFIG: task.type "evaluator" is not supported; a worker evaluates the model')
    if not isinstance(kind, str) or kind not in addresses:
        raise AddressError(f"TF_CONFIG: task.type: expected ps, worker or chief, got {json.dumps(kind)}")
    # TensorFlow itself takes "0" for 0.
    number = int(index) if isinstance(index, str) and re.fullmatch(r"[0-9]{1,9}", index) else index
    count = len(addresses[kind])
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < count:
        raise AddressError(
            f"TF_CONFIG: task.index: expected a number below {count} (cluster.{kind} has {count}), "
            f"got {json.dumps(index)}"
        )
    if kind == "ps":
        return "ps", number
    return "worker", number + len(addresses["chief"]) if kind == "worker" else number
