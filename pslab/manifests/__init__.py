"""An experiment as Kubernetes objects: two Indexed Jobs, or a JobSet of them. Pure: no cluster is contacted.

request   what is requested, validated
pods      pod templates of servers and workers
jobs      plain Indexed Jobs with a headless Service, and the same as one JobSet
"""
