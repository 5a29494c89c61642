"""The job of server 0: the coordinator among its peers.

job       sessions, work, time and status of the job; servers that hang
decider   the path of every input: decide, write, send
agreement terms, policy, optimizer and model, as far as they are known
next_job  the job that follows this one, and its folder
joining   which model may join, who becomes a member; the model of a checkpoint
reports   epoch sums, evaluations and progress
follower  another server: the orders sent to it, the receipts that it returns
silence   how long a server has been silent
routes    where outputs go: the run log, the shards, the sessions
outbox    the queue of one session, and inline replies
run_log   the files of the run folder, and when they are flushed
log_file  a file of whole lines, and the fence of its folder
"""
