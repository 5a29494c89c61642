"""The certificates of one run: an authority that lives in this process only, and a certificate for each process.

Keys are made here and reach their processes by their keepers' standard input (`pslab.launch.keeping.files`); none is
on a disk, in a command line or in the run folder.
"""

from collections.abc import Mapping
from typing import Final

from pslab.launch.engines.launcher import EngineError
from pslab.launch.keeping.blanks import file
from pswire.config.experiment import Experiment
from pswire.security.authority import Authority
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.names import IdentityError, Role, cluster_named_after
from pswire.security.rotation import LiveIdentity

# By the variable that names a file to a process.
_FILES: Final = {"PS_TLS_CA": "ca.pem", "PS_TLS_CERT": "cert.pem", "PS_TLS_KEY": "key.pem"}
# What a process finds in its environment.
ENVIRONMENT: Final = {variable: file(name) for variable, name in _FILES.items()}


class RunSecurity:
    """Raises EngineError where certificates cannot be made."""

    def __init__(self, run: str) -> None:
        try:
            self._authority = Authority.make(cluster_named_after(run))
            observer = self._authority.issue(Role.OBSERVER, "ps-lab")
        except IdentityError as error:
            raise EngineError(
                f"a run on several machines makes certificates for itself: {error}, or set security.insecure=true on "
                "a network where you trust everybody"
            ) from error
        # Of this process, which watches.
        self.observer = observer
        self.credentials = Credentials(LiveIdentity(observer), role=Role.OBSERVER)

    def files(self, role: Role, name: str, address: str) -> Mapping[str, bytes]:
        """Those of one process whose node has that address, by name. Raises IdentityError."""
        hosts = (address,) if role is Role.SERVER else ()
        identity = self._authority.issue(role, name, hosts)
        contents = (identity.ca, identity.cert, identity.key.reveal())
        return dict(zip(_FILES.values(), contents, strict=True))


def security_of(experiment: Experiment, remote: bool) -> RunSecurity | None:
    """None: the processes are on this machine, the experiment names certificates of its own, or says that it needs
    none. Raises EngineError."""
    said = experiment.security
    if not remote or said.insecure or said.ca:
        return None
    return RunSecurity(experiment.run.name)


def credentials_of(security: RunSecurity | None) -> Credentials:
    """With which this process asks the run's servers."""
    return NO_TLS if security is None else security.credentials
