"""The job of server 0: the coordinator among its peers.

job             what a caller of the job may do: sessions, work, time, what its status says
decider         what every input goes through: decide, write, send
first_entries   entries that wait for the workers' optimizer
agreement       terms, policy, optimizer and model, as far as they are known
model           a model is held here, and named to the other servers
joining         which model may come, and who becomes a member
resuming        in place of a beginning: from a checkpoint
silent_servers  servers that hang while their connection stands
epochs          sums over all workers of an epoch
evaluations     metrics of versions that workers report
progress        how far the job is, for people who ask
memory          what is too small and too often changed to be counted as it changes
"""
