"""The page changes the policy of a live cluster, if it was started for that and another site did not ask."""

import json
from pathlib import Path

import numpy as np
import pytest

from pswire.v1 import coordinator_pb2 as pb
from tests.dashboard.page import Page
from tests.links import connect_link
from tests.patience import PATIENCE
from tests.promises import promise
from tests.service.serving import serving, step

START = {"w": np.ones(4, np.float32)}
JSON = {"Content-Type": "application/json"}
ASYNC = json.dumps({"to": "async", "set": [], "why": "from the page"})


@promise("The page can change the policy of a running job.")
def test_the_page_changes_the_policy(tmp_path: Path) -> None:
    with serving() as cluster, connect_link(cluster.hosts, START) as session:
        step(session)
        with Page(tmp_path, cluster.hosts, "--change-policy") as page:
            assert "async" in page.json("/api/about")["policies"]
            status, _, body = page.request("/api/policy", JSON, "POST", ASYNC)
            assert status == 200, body
            knob = json.dumps({"to": "bounded", "set": ["policy.max_staleness=3"], "why": ""})
            assert page.request("/api/policy", JSON, "POST", knob)[0] == 200
            more = json.dumps({"to": "", "set": ["policy.on_stale=downweight"], "why": ""})
            status, _, body = page.request("/api/policy", JSON, "POST", more)
            assert status == 200, body
            found = cluster.coordinator.Status(pb.StatusRequest(), timeout=PATIENCE)
            knobs = json.loads(found.policy_knobs)
            assert (found.policy, knobs["max_staleness"], knobs["on_stale"]) == ("bounded", 3, "downweight")
            refused = [
                (409, JSON, json.dumps({"to": "median", "set": [], "why": ""})),
                (409, JSON, json.dumps({"to": "", "set": ["run.seed=1"], "why": ""})),
                (400, JSON, "[]"),
                (400, JSON, json.dumps({"to": 1, "set": [], "why": ""})),
                (400, JSON, "{"),
                *(
                    (400, JSON, json.dumps({"to": "", "set": [], "why": "", "rate": 0})[:-2] + f"{digits}}}")
                    for digits in ("9" * 400, "9" * 5000, "1e400", "NaN")
                ),
                (409, JSON, json.dumps({"to": "", "set": [f"policy.max_staleness={'9' * 400}"], "why": ""})),
                (413, JSON, json.dumps({"to": "async", "set": [], "why": "x" * 10_000})),
                (415, {"Content-Type": "text/plain"}, ASYNC),
                (403, {**JSON, "Sec-Fetch-Site": "cross-site"}, ASYNC),
                (421, {**JSON, "Host": "evil.example"}, ASYNC),
            ]
            for code, headers, body_text in refused:
                assert page.request("/api/policy", headers, "POST", body_text)[0] == code, body_text
            assert cluster.coordinator.Status(pb.StatusRequest(), timeout=PATIENCE).policy == "bounded"
        session.done()


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_page_that_may_not_has_no_such_address(tmp_path: Path, method: str) -> None:
    with serving() as cluster, Page(tmp_path, cluster.hosts) as page:
        assert page.request("/api/policy", JSON, method, ASYNC)[0] == 404
        assert "policies" not in page.json("/api/about")
