"""An experiment as Kubernetes objects: two Indexed Jobs, a JobSet, or a TFJob. Pure: no cluster is contacted.

request   what is requested, validated
pods      pod templates of servers and workers
jobs      plain Indexed Jobs with a headless Service, the same as one JobSet, and a TFJob
checking  rules for every manifest, independent of the code that makes them
yaml      documents as text
"""
