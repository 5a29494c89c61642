"""Channels and ports of gRPC are made in one place, or one of them would be left unprotected some day."""

import ast
from pathlib import Path

from tests.promises import promise

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path("pswire/transport/connecting.py")
MAKERS = {
    *("insecure_channel", "secure_channel", "add_insecure_port", "add_secure_port"),
    *("ssl_channel_credentials", "ssl_server_credentials", "dynamic_ssl_server_credentials"),
    *("local_channel_credentials", "insecure_server_credentials", "insecure_channel_credentials"),
}


def used(source: str) -> set[str]:
    """Names and attributes of MAKERS in a module."""
    if not any(name in source for name in MAKERS):
        return set()
    nodes = list(ast.walk(ast.parse(source)))
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    return (named | imported | {node.attr for node in nodes if isinstance(node, ast.Attribute)}) & MAKERS


@promise("No port of gRPC is made elsewhere than where TLS is applied.")
def test_channels_and_ports_are_made_in_one_place() -> None:
    found = {
        path.relative_to(ROOT): names
        for package in ("pswire", "psserver", "psworker", "pslab")
        for path in (ROOT / package).rglob("*.py")
        if (names := used(path.read_text(encoding="utf-8")))
    }
    assert set(found) == {PLACE}, found
    assert {"insecure_channel", "secure_channel", "add_secure_port"} <= found[PLACE]


def test_every_way_to_make_one_is_found() -> None:
    assert used("import grpc\ngrpc.aio.insecure_channel('a:1')") == {"insecure_channel"}
    assert used("from grpc import secure_channel as s") == {"secure_channel"}
    assert used("server.add_insecure_port(':1')") == {"add_insecure_port"}
    assert not used("insecure = 'insecure_channel'")
