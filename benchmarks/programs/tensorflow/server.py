"""A task of TensorFlow's cluster: `python -m benchmarks.programs.tensorflow.server ps|worker INDEX`.

Listens on a port of the system's choice, says which, and serves until its
input ends. The other tasks' addresses reach it with the chief's first call.
"""

import json
import os
import sys

import tensorflow as tf


def main(job: str, index: int) -> None:
    own = tf.train.ClusterSpec({job: {index: "localhost:0"}})
    server = tf.distribute.Server(own, job_name=job, task_index=index, protocol="grpc")
    print(json.dumps({"port": int(server.target.rpartition(":")[2])}), flush=True)
    sys.stdin.read()
    # The server's threads never end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
