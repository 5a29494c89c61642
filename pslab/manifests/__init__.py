"""From an experiment file to Kubernetes objects: two Indexed Jobs, a JobSet, or a TFJob. Pure: nothing is contacted.

request   what is asked for, and what is wrong with it
pods      what runs in a pod of a server, and of a worker
jobs      plain Indexed Jobs beside a headless Service, the same as one JobSet, and a TFJob
checking  what every manifest must be, looked at from outside
yaml      documents as text
"""
