"""A Ray cluster of several nodes on this machine: ``python -m tests.engines.ray_nodes CPUS CPUS ...``

It lives as long as its standard input is open. It is a process of its own, so that its end, however it comes, ends
everything of Ray that it has started.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.patience import PATIENCE

# Bytes of the object store: the smallest that Ray accepts. A run stores nothing there.
STORE = 80 << 20
# It needs a token, because Ray listens on every interface and runs the code of any client.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_AUTH_MODE": "token"}


@dataclass(frozen=True)
class RayNodes:
    """A cluster that runs. `environment`: variables that a client needs to connect."""

    pid: int
    address: str
    environment: dict[str, str]


@contextmanager
def serving(*cpus: int) -> Iterator[RayNodes]:
    """A node for each number of CPUs; drivers attach to the first one."""
    environment = {**QUIET, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.engines.ray_nodes", *map(str, cpus)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield RayNodes(process.pid, json.loads(process.stdout.readline())["address"], environment)
        finally:
            process.stdin.close()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def main() -> None:
    with ExitStack() as stack:
        # Not the folder where Ray keeps other clusters and the address that "auto" means.
        folder = tempfile.TemporaryDirectory(prefix="ps-ray-", ignore_cleanup_errors=True)
        os.environ["RAY_TMPDIR"] = stack.enter_context(folder)
        from ray.cluster_utils import Cluster

        head, *others = map(int, sys.argv[1:])
        first = {"num_cpus": head, "object_store_memory": STORE, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=first)
        stack.callback(cluster.shutdown)
        for signalled in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signalled, lambda number, frame: sys.exit(128 + number))
        for cpus in others:
            cluster.add_node(num_cpus=cpus, object_store_memory=STORE)
        cluster.wait_for_nodes(4 * PATIENCE)
        print(json.dumps({"address": cluster.address}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
