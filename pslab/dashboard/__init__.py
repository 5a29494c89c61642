"""The page of ``ps-lab dashboard``: a process beside the servers that shows one cluster to any number of viewers.

recording  a decision log in the rows that the page draws: lanes, contributions, updates, sentences
history    the newest part of a log in detail, with curves and counts of what precedes it
observer   a live cluster, polled twice a second for all viewers
runs       a run folder
sources    what the command line names: a cluster, a run folder, or nothing
app        the web application: files, JSON, and one event stream per viewer
access     checks of a request's headers
serve      the process: its socket, and the web server
playground experiments with sliders, run by the simulator
static     the page: HTML, CSS and ES modules, served as they are
"""
