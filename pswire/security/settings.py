"""The credentials of one process, from options, the environment, and [security] of an experiment file."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pswire.security.credentials import Credentials, LiveIdentity
from pswire.security.files import TlsFiles
from pswire.security.names import IdentityError, Role
from pswire.security.proof import VARIABLE as SECRET_VARIABLE

if TYPE_CHECKING:
    from pswire.config.run_sections import SecuritySection

# The environment variable of each option. The key in [security] has the same name, without "tls_".
VARIABLES: Final = {option: f"PS_{option.upper()}" for option in ("tls_ca", "tls_cert", "tls_key")}
# In a path, stands for the name of the process that reads it.
BLANK: Final = "{name}"
# The observer's name in `ps-lab certs`.
OBSERVER: Final = "observer-0"

# Variables of one process: a child process gets its own, or none.
PERSONAL: Final = (SECRET_VARIABLE, *VARIABLES.values())


class SecurityError(ValueError):
    """Inconsistent options. The text says which, and what was expected."""


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """Paths as they were given; None if not given."""

    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False

    def with_environment(self, environment: Mapping[str, str]) -> "SecurityOptions":
        """Fill options that are not given from the environment."""
        chosen = {
            name: getattr(self, name) or environment.get(variable) or None
            for name, variable in VARIABLES.items()
        }
        return SecurityOptions(**chosen, insecure=self.insecure)

    def with_section(self, section: "SecuritySection | None") -> "SecurityOptions":
        """Fill options that are still not given from an experiment file."""
        if section is None:
            return self
        chosen = {
            option: getattr(self, option) or getattr(section, option.removeprefix("tls_")) or None
            for option in VARIABLES
        }
        return SecurityOptions(**chosen, insecure=self.insecure or section.insecure)

    def named(self, name: str) -> "SecurityOptions":
        """Replace ``{name}`` in paths by the process's name, so that one experiment file serves all processes.

        Raises SecurityError if a path needs a name and there is none.
        """
        chosen = {option: getattr(self, option) for option in VARIABLES}
        asking = next((path for path in chosen.values() if path and BLANK in path), None)
        if asking is not None and not name:
            raise SecurityError(
                f"{asking}: expected a worker's task index or name to fill in, or a path without {BLANK}"
            )
        filled = {option: path and path.replace(BLANK, name) for option, path in chosen.items()}
        return SecurityOptions(**filled, insecure=self.insecure)

    def absolute(self) -> "SecurityOptions":
        """Make paths absolute, for a process with another working directory."""
        chosen = {option: getattr(self, option) for option in VARIABLES}
        found = {option: path and str(Path(path).absolute()) for option, path in chosen.items()}
        return SecurityOptions(**found, insecure=self.insecure)

    @property
    def given(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))


def credentials_for(
    role: Role,
    options: SecurityOptions,
    environment: Mapping[str, str],
    section: "SecuritySection | None" = None,
    *,
    name: str = "",
) -> Credentials:
    """Return the credentials. Options take precedence over variables, and these over the file.

    A server's follow its files; those of other processes stay as they were read here. `name`: this process's, if known.
    Raises SecurityError for inconsistent options, IdentityError for what is wrong in a file.
    """
    chosen = options.with_environment(environment).with_section(section).named(name)
    live = _identity(role, chosen)
    if live is not None and chosen.insecure:
        raise SecurityError(
            "--insecure means without TLS: expected either --insecure, or --tls-ca and its companions"
        )
    if live is not None:
        _check_role(role, live)
    return Credentials(live, role, chosen.insecure)


def _identity(role: Role, chosen: SecurityOptions) -> LiveIdentity | None:
    if not (chosen.tls_ca or chosen.tls_cert or chosen.tls_key):
        return None
    if not chosen.tls_ca:
        raise SecurityError("expected --tls-ca (or PS_TLS_CA), too: the authorities to trust")
    if not (chosen.tls_cert and chosen.tls_key):
        missing = [
            f"--{name.replace('_', '-')}" for name in ("tls_cert", "tls_key") if not getattr(chosen, name)
        ]
        raise SecurityError(f"expected {' and '.join(missing)}, too: this process must show a certificate")
    files = TlsFiles(Path(chosen.tls_ca), Path(chosen.tls_cert), Path(chosen.tls_key))
    return LiveIdentity(files if role is Role.SERVER else files.read())


def _check_role(role: Role, live: LiveIdentity) -> None:
    """Raise IdentityError for a server with another role's certificate, which others would refuse much later."""
    subject = live.now().facts.subject
    if role is Role.SERVER and subject.role is not role:
        raise IdentityError(f"the certificate is that of {subject}: a server needs one with the role server")


def job_secret(environment: Mapping[str, str]) -> str:
    """Return the secret that PS_JOB_SECRET has; empty if it is not set. Raises SecurityError for an invalid one."""
    secret = environment.get(SECRET_VARIABLE)
    if secret is None:
        return ""
    if not secret:
        raise SecurityError(
            f"{SECRET_VARIABLE}: expected a secret, got an empty text; unset it for a job without a secret, or give "
            "all servers of the job the same one"
        )
    try:
        secret.encode()
    except UnicodeEncodeError as error:
        raise SecurityError(
            f"{SECRET_VARIABLE}: expected text in UTF-8, got other bytes; `openssl rand -hex 32` makes a secret"
        ) from error
    return secret
