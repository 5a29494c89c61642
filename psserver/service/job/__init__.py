"""The job of server 0: the coordinator among its peers.

job             what a caller of the job may do: sessions, work, time, what its status says
decider         what every input goes through: decide, write, send; entries that wait for the workers' optimizer
agreement       terms, policy, optimizer and model, as far as they are known
model           a model is held here, and named to the other servers; or taken up from a checkpoint
joining         which model may come, and who becomes a member
silent_servers  servers that hang while their connection stands
epochs          sums over all workers of an epoch, and metrics of versions that workers report
progress        how far the job is, for people who ask
memory          what is too small and too often changed to be counted as it changes
follower        another server: the orders that it is sent, the receipts that it returns
routes, outbox  which caller hears what; the queue of one session
run_log, json_lines, flushing  the run folder: files of whole lines, and the newest entries for those who look on
"""
