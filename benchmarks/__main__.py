"""`scripts/bench`: `swarm` is a command with options of its own; everything else is beside TensorFlow."""

import sys

from benchmarks import cli
from benchmarks.swarm import cli as swarm

if sys.argv[1:2] == ["swarm"]:
    swarm.main(sys.argv[2:], prog_name="bench swarm")
else:
    cli.main(prog_name="bench")
