"""The dashboard says where nothing protects a job."""

from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.dashboard.page import Viewer

pytest.importorskip("starlette", reason="needs the extra dashboard")
pytest.importorskip("uvicorn", reason="needs the extra dashboard")
pytestmark = pytest.mark.cluster


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
