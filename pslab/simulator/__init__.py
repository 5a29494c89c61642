"""A cluster on a virtual clock: the servers' own coordinator, policy and shards, with simulated workers and links.

Rules of this package: no clock, no threads, no sockets, no TensorFlow. Time comes from the event queue; chance comes
from seeded generators, one per worker and purpose. The same experiment gives the same run, to the last bit.

    network      the event queue; latency and bandwidth of links; messages, and how lost ones are sent again
    worker       a worker's loop as a state machine
    worker_data  the batches that it works through
    store        the shards' arrays (learning), or nothing (timing only)
    cluster      the shell around coordinator and shards
    faults       crashes, leaves, late starts, broken connections
    folder       the run folder, as the servers write it
    checkpoints  saved and read again by the servers' code
    build        all of these from an experiment
    problems     numpy problems with a known optimum
"""

from pslab.simulator.build import SimulationError, TrainerFactory, build
from pslab.simulator.cluster import Cluster
from pslab.simulator.folder import Folder

__all__ = ["Cluster", "Folder", "SimulationError", "TrainerFactory", "build"]
