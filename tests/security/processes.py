"""Real servers and workers, each with a certificate of its own."""

from pathlib import Path

from pslab.launch.status_client import StatusClient
from pswire.security.names import Role
from tests.cluster.cluster import Cluster, Process
from tests.security.identities import Identities


class ProtectedCluster(Cluster):
    """As `Cluster`, under mutual TLS: server-0 shows ps://tests/server/server-0, worker-0 ps://tests/worker/w0."""

    def __init__(self, folder: Path, identities: Identities) -> None:
        super().__init__(folder)
        self._identities = identities

    def launch(self, name: str, *command: str, **environment: str) -> Process:
        kind, _, number = name.partition("-")
        role, own = (Role.SERVER, name) if kind == "server" else (Role.WORKER, f"w{number}")
        told = self._identities.environment(role, own)
        return super().launch(name, *command, **told, **environment)

    def questioner(self) -> StatusClient:
        return StatusClient(self.addresses[0], credentials=self._identities.credentials(Role.OBSERVER))
