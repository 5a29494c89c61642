"""A cluster on a virtual clock: the daemons' own coordinator, policy and shards, with simulated workers and links.

Rules of this package: no clock, no threads, no sockets, no TensorFlow. Time is
the event queue's; chance comes from seeded generators, one per worker and purpose.
Same experiment, same run, to the last bit.

    network      what happens next; latency and bandwidth of links; messages, of which lost ones are sent again
    workers      the worker's loop as a state machine, and what it works through
    store        the shards' arrays (learning); nothing at all (timing only)
    cluster      the shell around coordinator and shards
    faults       crashes, leaves, late starts, broken connections
    folder       the run folder, as the servers write it
    checkpoints  saved and read again, as the servers do it
    build        all of these from an experiment
    problems     numpy problems with a known optimum
"""

from pslab.simulator.build import SimulationError, TrainerFactory, build
from pslab.simulator.cluster import Cluster
from pslab.simulator.folder import Folder

__all__ = ["Cluster", "Folder", "SimulationError", "TrainerFactory", "build"]
