"""The processes that a `ps-lab run` has started, as a test finds them that kills one of them."""

from pathlib import Path

import psutil


def servers(launcher: int, log: Path) -> list[psutil.Process]:
    """The servers among a launcher's children; the first is server 0, which has `log` open.

    By what they do: servers alone listen. Command lines tell nothing, a fork has that of its fork server.
    """
    children = psutil.Process(launcher).children()
    listening = [
        child
        for child in children
        if any(one.status == psutil.CONN_LISTEN for one in child.net_connections("tcp"))
    ]
    (first,) = [each for each in listening if str(log.resolve()) in {file.path for file in each.open_files()}]
    return [first, *(each for each in listening if each != first)]
