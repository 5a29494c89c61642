"""Who records every byte of a job, of each port, between servers too, reads nothing of it under TLS."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from psserver.options import Options
from pswire.model.plan import VariableSpec
from pswire.security.names import Role
from pswire.security.settings import SecurityOptions
from pswire.transport import socket_handshake as handshake
from pswire.transport.framed_socket import FramedSocket
from tests.asking import ask
from tests.links import connect_link
from tests.relay import Relay, relayed
from tests.security.identities import Identities
from tests.service.serving import PATIENCE, Served
from tests.shm.sessions import granted

PATTERN = b"PlantedWeights.."
SIZE = 1 << 18


class Recorded(NamedTuple):
    """A job of two servers and one worker, and all that passed between them. `secrets`: what must not be in it."""

    passed: bytes
    secrets: dict[str, bytes]


Security = Callable[[Role, str], SecurityOptions]


def played(security: Security, transport: str, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    relays: list[Relay] = []
    tokens: list[bytes] = []
    with ExitStack() as stack:

        def through_a_relay(address: str) -> str:
            host, _, port = address.rpartition(":")
            relays.append(stack.enter_context(relayed((host, int(port)), record=True)))
            return f"127.0.0.1:{relays[-1].port}"

        dial = handshake.connect_tcp

        def dialled(host: str, port: int, token: bytes, *context: Any) -> FramedSocket:
            tokens.append(token)
            through, _, relay = through_a_relay(f"{host}:{port}").rpartition(":")
            return dial(through, int(relay), token, *context)

        monkeypatch.setattr(handshake, "connect_tcp", dialled)
        second = stack.enter_context(served(security, ["127.0.0.1:0", "127.0.0.1:0"], 1))
        hidden = through_a_relay(second.address)
        first = stack.enter_context(served(security, ["127.0.0.1:0", hidden], 0))
        hosts = f"{through_a_relay(first.address)},{hidden}"
        names = secrets_of_a_step(hosts, security(Role.WORKER, "anna"), transport)
        key = ask(first.server.runtime, lambda: first.server.host.secret)
    monkeypatch.undo()
    assert tokens if transport == "socket" else not tokens
    known = {**names, "receipts' key": key, **{f"line token {n}": token for n, token in enumerate(tokens)}}
    return Recorded(b"".join(bytes(relay.seen) for relay in relays), known)


@contextmanager
def served(security: Security, addresses: list[str], index: int) -> Iterator[Served]:
    plan = Options(
        ps_hosts=",".join(addresses),
        task_index=index,
        overrides=["policy.name=async", "optimizer.learning_rate=1.0"],
        security=security(Role.SERVER, f"server-{index}"),
    )
    made = Served(plan, patience=PATIENCE, read_limit=0.5)
    try:
        yield made
    finally:
        made.interrupt()
        made.ended()


def secrets_of_a_step(hosts: str, security: SecurityOptions, transport: str) -> dict[str, bytes]:
    """Pull, push, commit: weights go both ways."""
    weights = np.frombuffer(PATTERN * (SIZE // 4), np.float32)
    values = [(VariableSpec(name, (SIZE,)), weights) for name in ("hidden", "other")]
    files = {"tls_ca": security.tls_ca, "tls_cert": security.tls_cert, "tls_key": security.tls_key}
    with connect_link(
        hosts, values, name="anna", transport=transport, server_timeout=PATIENCE, **files
    ) as session:
        grant = granted(session)
        flats = session.pull_flat(grant)
        assert PATTERN in flats[0].tobytes()
        session.contribute(grant, [np.copy(flat) for flat in flats], samples=1)
        granted(session)
        assert session.transport == (transport, transport)
        return {"weights": PATTERN, "the job's name": session.info.job.encode(), "a variable's": b"hidden"}


@pytest.mark.parametrize("transport", ["grpc", "socket"])
def test_who_records_all_bytes_of_a_job_under_tls_has_none_of_its_secrets(
    identities: Identities, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acceptance 4. Without TLS the same recording has them all: so it would show them."""
    plain = played(lambda role, name: SecurityOptions(), transport, monkeypatch)
    assert {name for name, secret in plain.secrets.items() if secret not in plain.passed} == set()
    hidden = played(identities.options, transport, monkeypatch)
    assert hidden.secrets["the job's name"] != plain.secrets["the job's name"]
    assert len(hidden.passed) > len(plain.passed) > 4 * SIZE
    assert {name for name, secret in hidden.secrets.items() if secret in hidden.passed} == set()
    # Of TLS 1.3 not even the certificates' names.
    assert b"ps://" not in hidden.passed
