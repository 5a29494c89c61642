"""The script of a worker without TensorFlow that says where it is; else as tests.cluster.numpy_worker.

With --fail it raises, as a job's own code.
"""

import os
import socket
import sys

from tests.cluster.numpy_worker import main, say

if __name__ == "__main__":
    node, host = os.environ.get("SLURMD_NODENAME", ""), socket.gethostname()
    say("where", pid=os.getpid(), node=node, host=host, parent=os.getppid())
    if "--fail" in sys.argv:
        raise ValueError("no data")
    sys.exit(main())
