"""A run as Kubernetes objects. Pure: no cluster is contacted.

request    what is asked for, checked; the objects as text
*.yaml     the templates: objects of every run, two Jobs or one JobSet, and what their two Jobs have in common
"""
