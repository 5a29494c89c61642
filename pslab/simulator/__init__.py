"""A cluster on a virtual clock: the daemons' own coordinator, policy and shards, with simulated workers and links.

Rules of this package: no clock, no threads, no sockets, no TensorFlow. Time is
the event queue's; chance comes from seeded generators, one per worker and purpose.
Same experiment, same run, to the last bit.

    event_queue  what happens next: a heap of (time, sequence, action)
    network      latency and bandwidth; a server's link is shared by its flows
    channel      messages between workers and coordinator: in order, lost ones are sent again
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
