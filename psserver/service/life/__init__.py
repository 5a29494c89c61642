"""What a server does from its start to its end.

settings      all that it needs to know
listeners     what it listens on: gRPC, the port for payloads, the port for metrics
coordinating  server 0's part: it makes the job, and sees it to its end
following     any other server's part: it does as server 0 says
making        from settings to the job of server 0
job_loop      time passes for the job
results       the final weights, the summary, the exit code
successor     the next server in the same process: one that stays, or one that lost another server
servers, announcing, moves  the other servers of a job, how they learn of each other, and where a lost one went
"""
