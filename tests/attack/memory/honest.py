"""An honest worker in a process of its own, whose longest step says how long others stood still.

    python -m tests.attack.memory.honest ADDRESS TABLES

Steps until its input ends, and then prints the number of steps and the seconds of the longest.
"""

import json
import sys
import threading
import time

import numpy as np

from pswire.model.plan import VariableSpec
from pswire.model.tables import TableSpec
from psworker.link import Link
from tests.links import connect_link

VARIABLES = [(VariableSpec("bias", (4,)), np.zeros(4, np.float32))]
ROWS = TableSpec("rows", 64, "normal", (0.0, 0.05))


def connected(address: str, *, tables: bool) -> Link:
    return connect_link([address], VARIABLES, tables=[ROWS] if tables else [], server_timeout=120)


def main(address: str, tables: bool) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    ids = np.arange(8)
    steps, longest = 0, 0.0
    with connected(address, tables=tables) as session:
        while not over.is_set():
            began = time.monotonic()
            grant = session.ready()
            assert grant is not None
            rows = {"rows": (ids, np.zeros((8, 64), np.float32))} if tables else {}
            session.push(grant, {"bias": np.zeros(4, np.float32)}, rows=rows)
            session.commit(grant, samples=1)
            longest = max(longest, time.monotonic() - began) if steps else 0.0
            steps += 1
            if steps == 1:
                print("ready", flush=True)
            over.wait(0.02)
        print(json.dumps({"steps": steps, "longest": longest}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "tables")
