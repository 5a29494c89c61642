"""The way of a gradient: the functions that it passes, whose order a traced step holds (`tests/docs/test_way.py`)."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from docs.generate.docstrings import paragraphs
from docs.generate.table import code, table

INTRODUCTION = """# The way of a gradient

One gradient, from a loop of turns on a worker to the new version on its one server and back, under `async` and over a
socket: the functions that it passes, in order, each with the first words of its own docstring. Payload and commit
travel together here; with several servers the commit follows the receipts. A test compares this page with the calls of
a real run."""

WAY: Final[dict[str, tuple[str, ...]]] = {
    "Worker: out": (
        "psworker.session.LoopTurn.send",
        "psworker.turn.Turn.send",
        "psworker.link.Link.contribute",
        "psworker.engine.client.ClientEngine.commit",
        "psworker.data.shard_client.ShardClient.step",
        "psworker.data.carrier.Carrier.ask",
        "pswire.transport.framed_socket.FramedSocket.send",
    ),
    "Server: receive": (
        "psserver.service.net.exchange.ExchangeRpc.exchange",
        "psserver.service.net.connection.SocketConnection.receive",
        "psserver.service.store.admission.Claims.admit",
        "psserver.shard.staging.Staging.begin",
        "psserver.shard.payload_checks.PayloadChecks.copy_in",
        "psserver.service.store.admission.PushSlots.finish",
        "psserver.service.net.commits.Commits.take",
    ),
    "Server: decide": (
        "psserver.coordinator.coordinator.Coordinator.take",
        "psserver.coordinator.contributions.Contributions.commit",
        "psserver.coordinator.driver.PolicyDriver.decide",
        "psserver.policies.composed.ComposedPolicy.step",
        "psserver.coordinator.ledger.Ledger.record",
    ),
    "Server: write and execute": (
        "psserver.service.job.run_log.RunLog.append",
        "psserver.service.store.executor.Executor.execute_submitted",
        "psserver.shard.shard.Shard.prepare",
        "psserver.shard.updates.Updates.apply",
        "psserver.shard.updater.Updater.add",
        "psserver.shard.arena.Arena.publish",
    ),
    "Server: answer": (
        "psserver.service.net.pulls.send_version",
        "psserver.service.net.connection.SocketConnection.send",
    ),
    "Worker: in": (
        "psworker.data.reader.WeightReader.store_ahead",
        "psworker.engine.client.ClientEngine.answered_commit",
    ),
}


def function(dotted: str) -> Callable[..., Any]:
    """Return the function of this module and qualified name."""
    parts = dotted.split(".")
    depth = next(number for number, part in enumerate(parts) if part[0].isupper() or number == len(parts) - 1)
    found: Any = import_module(".".join(parts[:depth]))
    for name in parts[depth:]:
        found = getattr(found, name)
    return found  # type: ignore[no-any-return]


def _row(dotted: str) -> tuple[str, str]:
    passed = function(dotted)
    file = passed.__module__.replace(".", "/<wbr>") + ".py"
    first, *_ = paragraphs(inspect.getdoc(passed)) or [""]
    return f"{code(passed.__qualname__)}<br>{file}", first.partition(". ")[0].rstrip(".") + "."


def pages() -> dict[str, str]:
    parts = [INTRODUCTION]
    for title, stops in WAY.items():
        parts += [f"## {title}", table(("function", "does"), map(_row, stops))]
    return {"design/way.md": "\n\n".join(parts) + "\n"}
