"""A server from its start to its end.

settings      everything that it needs to know
listeners     what it listens on: gRPC, payloads, metrics; warnings about certificates
coordinating  server 0: makes the job and runs it to its end
following     any other server: executes what server 0 decides
job_loop      passes time to the job
results       the final weights, the summary, the exit code
servers       one server after another in the same process: the next job, or recovery after a loss
"""
