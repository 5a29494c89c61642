"""Copies of the coordinator and its part of the model on two servers: the shell of `psserver.replication`.

One log holds what the primary takes: payloads, and inputs of the coordinator. The primary decides an input at once and
keeps the outputs back until all copies hold it; a follower decides it anew, and nothing of it leaves.

wire       messages of the protocol as bytes
disk       the promise and the configuration on the disk
link       what this server sends to another one
links      the streams between the servers
shell      carries out what the protocol's state machine says about one log, in order
logs       the logs of all parts on one server, which votes in each
inputs     inputs of a coordinator, noted and taken again
same       what all servers have in common
transfer   a copy of everything, as bytes
lending    arrays of a copy that a server of the same machine reads where they lie
giving     a primary gives a copy
learning   a server without one takes it up
comparing  versions of both copies, compared
holding    a copy of a part on one server: as primary, or as follower
copy       part 0 with the job
part       another part, which follows the coordinator
followers  the coordinator's streams to other parts, and what it keeps for them
saving     which copy of a part saves it
job_state  everything about a job but its shard, in a copy
log        the log's files at a takeover
payloads   payloads, forwarded before their receipt
"""
