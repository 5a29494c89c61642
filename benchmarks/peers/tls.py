"""Certificates for one benchmark run: one that its servers share, and one for its workers."""

from pathlib import Path

from pslab.authority import Authority
from pswire.security.files import TlsFiles
from pswire.security.names import Role


def make(folder: Path) -> tuple[TlsFiles, TlsFiles]:
    """A server's, for this machine, and a worker's. Raises IdentityError without the extra tls."""
    authority = Authority.make("bench")
    made = []
    for role in (Role.SERVER, Role.WORKER):
        files = TlsFiles.in_folder(folder, str(role))
        files.write(authority.issue(role))
        made.append(files)
    return made[0], made[1]


def keywords(files: TlsFiles) -> dict[str, str]:
    """Of psworker.connect."""
    return {"tls_ca": str(files.ca), "tls_cert": str(files.cert), "tls_key": str(files.key)}


def options(files: TlsFiles) -> list[str]:
    """Of ps-server."""
    return ["--tls-ca", str(files.ca), "--tls-cert", str(files.cert), "--tls-key", str(files.key)]
