"""The dashboard over https, by the identity of who looks; and that it says where nothing protects a job."""

import http.client
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pswire.security.names import Role
from tests.cluster.cluster import Cluster
from tests.dashboard.page import Viewer
from tests.security.identities import Identities
from tests.security.processes import ProtectedCluster
from tests.service.serving import PATIENCE

pytest.importorskip("starlette", reason="needs the extra dashboard")
pytest.importorskip("uvicorn", reason="needs the extra dashboard")
pytestmark = pytest.mark.cluster

Answer = tuple[int, dict[str, str], str]


class Page:
    """`ps-lab dashboard ARGUMENTS`, where other machines reach it; this one does, too, by 127.0.0.1."""

    def __init__(self, cluster: Cluster, *arguments: str, **environment: str) -> None:
        command = ("-m", "pslab", "dashboard", "--bind", "0.0.0.0", "--port", "0", *arguments)
        # Of whoever looks, not of a server or worker.
        self.process = Cluster.launch(cluster, "dashboard", *command, **environment)
        line = self.process.wait_line(lambda line: line.startswith("dashboard: "), "where it is")
        self.link = urlsplit(line.removeprefix("dashboard: "))
        assert self.link.port is not None
        self.port = self.link.port

    def get(self, path: str, context: ssl.SSLContext, **headers: str) -> Answer:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=context)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return (
                answer.status,
                {key.lower(): value for key, value in answer.getheaders()},
                answer.read().decode(),
            )
        finally:
            connection.close()

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.close()


def test_the_page_over_https(identities: Identities, tmp_path: Path) -> None:
    """What a browser does: it believes the authority, checks the host, has no certificate, and comes with the link."""
    shown = identities.environment(Role.OBSERVER, "page", hosts=("127.0.0.1",))
    with ProtectedCluster(tmp_path, identities) as cluster:
        cluster.start_servers(1, "--workers", "1")
        with Page(cluster, cluster.addresses[0], **shown) as page:
            assert page.link.scheme == "https" and page.link.query.startswith("token=")
            browser = ssl.create_default_context(cafile=str(identities.files(Role.OBSERVER).ca))
            assert page.get("/", browser)[0] == 401
            status, headers, _ = page.get(f"/?{page.link.query}", browser)
            cookie = headers["set-cookie"]
            assert status == 303 and "httponly" in cookie.lower() and "secure" in cookie.lower()
            kept = cookie.partition(";")[0]
            status, _, text = page.get("/api/about", browser, Cookie=kept)
            assert status == 200 and '"live"' in text
            # Nobody who does not believe the authority, and nobody in the clear.
            with pytest.raises(ssl.SSLCertVerificationError):
                page.get("/", ssl.create_default_context())
            plain = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE)
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                plain.request("GET", f"/?{page.link.query}")
                plain.getresponse()
            plain.close()


def exposed(cluster: Cluster, folder: Path) -> str:
    """What the page shows on top of the job's first status."""
    from tests.dashboard.page import Page as LoopbackPage

    with LoopbackPage(folder, cluster.addresses[0]) as page, Viewer(page.host, page.port) as viewer:
        kind, message = next(viewer.messages())
        assert kind == "whole"
        said: str = message["status"]["exposed"]
        return said


def test_the_page_says_that_nothing_protects_a_job(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start_servers(1, "--workers", "1", "--bind", "0.0.0.0", "--insecure")
        assert cluster.status().security == "insecure"
        assert exposed(cluster, tmp_path).startswith("not protected (--insecure)")


def test_the_page_says_nothing_where_the_job_is_on_the_loopback(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start_servers(1, "--workers", "1")
        assert exposed(cluster, tmp_path) == ""
