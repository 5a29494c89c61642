"""``python -m pslab.launch.engines.ray.nodes CPUS CPUS ...``: a Ray cluster on this machine, with a node for each
number of CPUs, as long as somebody holds this process's standard input open.

A process of its own: its end, however it comes, ends all of Ray that it has started.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress

# The least that Ray takes: nothing of ours lies in its store.
STORE = 80 << 20
# Seconds: a node takes two of an idle machine.
START, END = 120.0, 20.0
# Of a cluster's own. A token, because Ray listens on every interface, and whoever may talk to it runs code.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_AUTH_MODE": "token"}


class NodesError(RuntimeError):
    """No cluster could be started; the text has what Ray said."""


class ThrowAway:
    """A cluster for one run. `environment`: for whoever connects to it."""

    def __init__(self, cpus: Sequence[int]) -> None:
        """`cpus`: of each node, as Ray is to count them; drivers attach to the first. Returns when it stands. Raises
        NodesError."""
        self.environment = {**QUIET, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pslab.launch.engines.ray.nodes", *map(str, cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **self.environment},
            # A Ctrl-C on the terminal is for the launcher.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._tail()
            self.close()
            raise NodesError(f"no Ray cluster of {len(cpus)} nodes could be started here:\n{said}")
        self.address = str(json.loads(line)["address"])

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Nothing of it is left."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _tail(self) -> str:
        self._log.seek(0)
        return "\n".join(self._log.read().decode("utf-8", "replace").splitlines()[-12:])


def main(arguments: Sequence[str]) -> None:
    """Says the address in one line of JSON."""
    head, *others = map(int, arguments)
    with ExitStack() as stack:
        # Not where Ray keeps those of other clusters, and the address of the one that "auto" means.
        folder = tempfile.TemporaryDirectory(prefix="ps-ray-", ignore_cleanup_errors=True)
        os.environ["RAY_TMPDIR"] = stack.enter_context(folder)
        from ray.cluster_utils import Cluster

        first = {"num_cpus": head, "object_store_memory": STORE, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=first)
        stack.callback(cluster.shutdown)
        for signalled in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signalled, lambda number, frame: sys.exit(128 + number))
        for cpus in others:
            cluster.add_node(num_cpus=cpus, object_store_memory=STORE)
        cluster.wait_for_nodes(START)
        print(json.dumps({"address": cluster.address}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
