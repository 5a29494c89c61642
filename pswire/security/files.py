"""The three files of an identity. A key is read only if nobody else can read it, and written accordingly."""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pswire.security.identity import Identity
from pswire.security.names import IdentityError
from pswire.security.secret import Secret

# More than any certificate file; the path may be that of anything.
_MAX_BYTES: Final = 2**20

# The identity of a file's contents: inode, modification time, size.
Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """`[security] ca, cert, key`: the trusted authorities, this process's certificate and its key."""

    ca: Path
    cert: Path
    key: Path

    @classmethod
    def in_folder(cls, folder: Path, name: str) -> "TlsFiles":
        """Return the files as `ps-lab certs` names them: ca.pem, NAME.pem, NAME-key.pem."""
        return cls(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}-key.pem")

    def read(self) -> Identity:
        """Read the identity.

        Raises IdentityError for missing or unreadable files, a key that others can read, and files that do not belong
        together or are not valid now.
        """
        ca = read_file(self.ca, "certificates of authorities (CA)")
        cert = read_file(self.cert, "certificate")
        identity = Identity(ca, cert, Secret(read_file(self.key, "key", private=True)))
        try:
            identity.client_context()
            _ = identity.facts
        except IdentityError as error:
            raise IdentityError(f"{error} ({', '.join(map(str, self._all))})") from error
        return identity

    def write(self, identity: Identity, *, replace: bool = False) -> None:
        """Write the identity, with the key readable by its owner only.

        Raises FileExistsError for a certificate or key that exists, unless `replace`; replacing is atomic, so readers
        see the old file or the new one. Raises OSError.
        """
        if not self.ca.exists() or replace:
            write_file(self.ca, identity.ca, 0o644, replace=True)
        write_file(self.key, identity.key.reveal(), 0o600, replace=replace)
        write_file(self.cert, identity.cert, 0o644, replace=replace)

    @property
    def stamps(self) -> tuple[Stamp | None, ...]:
        """Stamps that change when a file is written or replaced; None for a file that cannot be examined."""
        return tuple(_stamp(path) for path in self._all)

    @property
    def _all(self) -> tuple[Path, ...]:
        return self.ca, self.cert, self.key


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_file(path: Path, what: str, *, private: bool = False) -> bytes:
    """Read a file. `private`: nobody else may be able to read it. Raises IdentityError, which calls it `what`."""
    try:
        with path.open("rb") as file:
            if private:
                _refuse_what_others_read(path, what, os.fstat(file.fileno()))
            return file.read(_MAX_BYTES)
    except OSError as error:
        raise IdentityError(f"the {what} cannot be read: {path}: {error.strerror or error}") from error


def _refuse_what_others_read(path: Path, what: str, found: os.stat_result) -> None:
    """Raise IdentityError if others can read a key, with the rules of PostgreSQL's client.

    Root may own a key that a group can read, because Kubernetes mounts secrets that way for non-root processes.
    """
    if found.st_uid == os.geteuid():
        allowed = 0o700
    elif found.st_uid == 0:
        allowed = 0o740
    else:
        raise IdentityError(
            f"the {what} {path} belongs to user {found.st_uid}: expected one of this process's user "
            f"({os.geteuid()}) or root"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & ~allowed:
        raise IdentityError(
            f"the {what} {path} can be read or written by others (mode {mode:04o}); run: chmod 600 {path}"
        )


def write_file(path: Path, data: bytes, mode: int, *, replace: bool = False) -> None:
    """Write a file with these rights. Raises FileExistsError unless `replace`, OSError."""
    if not replace:
        _create(path, data, mode)
        return
    new = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        # Left by a process that was killed here.
        new.unlink()
    _create(new, data, mode)
    new.replace(path)


def _create(path: Path, data: bytes, mode: int) -> None:
    """Create a file that did not exist, with no more rights than `mode` from the beginning."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
