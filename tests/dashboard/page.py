"""The dashboard as a process, asked as a browser would ask, and server-sent events as a browser would read them."""

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

from tests.cluster.cluster import Process
from tests.patience import PATIENCE

# What plays gives way to all other processes: it begins when they let it.
LONG = 4 * PATIENCE


class Page:
    """`python -m pslab dashboard ARGUMENTS` on a free port; killed when the `with` block is left."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        from tests.cluster.cluster import Cluster

        self._cluster = Cluster(folder)
        self.process: Process = self._cluster.launch(
            "dashboard", "-m", "pslab", "dashboard", "--port", "0", *arguments
        )
        line = self.process.wait_line(lambda line: line.startswith("dashboard: "), "where it is")
        self.url = line.removeprefix("dashboard: ")
        split = urlsplit(self.url)
        assert split.hostname and split.port
        self.host, self.port = split.hostname, split.port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.close()

    def request(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        method: str = "GET",
        body: str | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=LONG)
        try:
            connection.request(method, path, body, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        status, _, body = self.request(path)
        assert status == 200, (status, body)
        return json.loads(body)

    def play(self, asked: Mapping[str, Any]) -> Any:
        return self.json(f"/api/play?play={quote(json.dumps(asked))}")

    def viewer(self) -> "Viewer":
        return Viewer(self.host, self.port)


class Viewer:
    """One open event stream."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=LONG)
        self._connection.request("GET", "/api/events", headers={"Accept": "text/event-stream"})
        self.answer = self._connection.getresponse()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def messages(self) -> Iterator[tuple[str, Any]]:
        """(event, data)."""
        kind = ""
        for raw in self.answer:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, json.loads(line.removeprefix("data: "))

    def cut(self) -> None:
        """From another thread than the reader's, which then finds the end."""
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.answer.close()
        self._connection.close()
