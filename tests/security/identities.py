"""Certificates of one cluster, made once per session, as files: what `ps-lab certs` makes, without the command."""

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pslab.authority import Authority
from pswire.security.credentials import Credentials, LiveIdentity
from pswire.security.files import TlsFiles
from pswire.security.names import Role
from pswire.security.settings import VARIABLES, SecurityOptions

# Ended half an hour ago; it had begun before.
ENDED = -datetime.timedelta(minutes=30)


class Identities:
    """`folder`: where the files are; each identity is made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.make("tests")
        self.foreign = Authority.make("tests")
        self._made: dict[tuple[Any, ...], TlsFiles] = {}

    def files(
        self,
        role: Role,
        name: str = "",
        hosts: Sequence[str] = (),
        *,
        authority: Authority | None = None,
        valid: datetime.timedelta | None = None,
    ) -> TlsFiles:
        key = (role, name, tuple(hosts), id(authority), valid)
        if key not in self._made:
            made = (authority or self.authority).issue(role, name, hosts, valid)
            files = TlsFiles.in_folder(self.folder / str(len(self._made)), "one")
            files.ca.parent.mkdir()
            files.write(made)
            self._made[key] = files
        return self._made[key]

    def options(self, role: Role, name: str = "", **more: Any) -> SecurityOptions:
        return options_of(self.files(role, name, **more))

    def credentials(self, role: Role, name: str = "", **more: Any) -> Credentials:
        return Credentials(LiveIdentity(self.files(role, name, **more)), role)

    def environment(self, role: Role, name: str = "", **more: Any) -> dict[str, str]:
        """As a process is told of its files."""
        return variables_of(self.options(role, name, **more))


def overwrite(path: Path, content: bytes) -> None:
    """In place. The file has another time than before, also where the system's clock for files has not moved since."""
    before = path.stat().st_mtime_ns
    path.write_bytes(content)
    now = path.stat()
    os.utime(path, ns=(now.st_atime_ns, max(now.st_mtime_ns, before + 1)))


def options_of(files: TlsFiles) -> SecurityOptions:
    return SecurityOptions(str(files.ca), str(files.cert), str(files.key))


def variables_of(options: SecurityOptions) -> dict[str, str]:
    said = {variable: getattr(options, name) for name, variable in VARIABLES.items()}
    return {variable: value for variable, value in said.items() if value}
