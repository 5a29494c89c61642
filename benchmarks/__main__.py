"""`scripts/bench`: `swarm` and `checkpoint` are commands with options of their own; all else is beside TensorFlow."""

import sys

from benchmarks import checkpoints, cli
from benchmarks.swarm import cli as swarm

if sys.argv[1:2] == ["swarm"]:
    swarm.main(sys.argv[2:], prog_name="bench swarm")
elif sys.argv[1:2] == ["checkpoint"]:
    checkpoints.main(sys.argv[2:], prog_name="bench checkpoint")
else:
    cli.main(prog_name="bench")
