"""The script of a worker without TensorFlow that says where it is; else as tests.cluster.numpy_worker.

With --fail it raises, as a job's own code.
"""

import os
import sys

from tests.cluster.numpy_worker import main, say

if __name__ == "__main__":
    say("where", pid=os.getpid(), node=os.environ.get("SLURMD_NODENAME", ""), parent=os.getppid())
    if "--fail" in sys.argv:
        raise ValueError("no data")
    sys.exit(main())
