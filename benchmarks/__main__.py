"""`scripts/bench`: some sections are commands with options of their own; all else is beside TensorFlow."""

import sys

from benchmarks import checkpoints, cli, recovery, replicas
from benchmarks.advisor import cli as advisor
from benchmarks.codecs import cli as codecs
from benchmarks.codecs import rounds
from benchmarks.links import cli as links
from benchmarks.swarm import cli as swarm
from benchmarks.tables import cli as tables
from benchmarks.tables import large, rows

if sys.argv[1:2] == ["swarm"]:
    swarm.main(sys.argv[2:], prog_name="bench swarm")
elif sys.argv[1:2] == ["checkpoint"]:
    checkpoints.main(sys.argv[2:], prog_name="bench checkpoint")
elif sys.argv[1:2] == ["recovery"]:
    recovery.main(sys.argv[2:], prog_name="bench recovery")
elif sys.argv[1:2] == ["replicas"]:
    replicas.main(sys.argv[2:], prog_name="bench replicas")
elif sys.argv[1:2] == ["links"]:
    links.main(sys.argv[2:], prog_name="bench links")
elif sys.argv[1:2] == ["codecs"]:
    codecs.main(sys.argv[2:], prog_name="bench codecs")
elif sys.argv[1:2] == ["local-steps"]:
    rounds.main(sys.argv[2:], prog_name="bench local-steps")
elif sys.argv[1:2] == ["tables"]:
    tables.main(sys.argv[2:], prog_name="bench tables")
elif sys.argv[1:2] == ["rows"]:
    rows.main(sys.argv[2:], prog_name="bench rows")
elif sys.argv[1:2] == ["large-table"]:
    large.main(sys.argv[2:], prog_name="bench large-table")
elif sys.argv[1:2] == ["advisor"]:
    advisor.main(sys.argv[2:], prog_name="bench advisor")
elif sys.argv[1:2] == ["fit"]:
    # These load TensorFlow, which others do not need.
    from benchmarks.programs import fit_speed

    fit_speed.main(sys.argv[2:])
elif sys.argv[1:2] == ["ddp"]:
    from benchmarks.programs import ddp

    ddp.main(sys.argv[2:])
elif sys.argv[1:2] == ["strategies"]:
    from benchmarks.programs import strategies

    strategies.main(sys.argv[2:])
else:
    cli.main(prog_name="bench")
