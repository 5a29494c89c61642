"""The page of ``ps-lab dashboard``: a process beside the servers that watches one cluster for any number of viewers.

recording  a decision log as the page draws it: lanes, contributions, updates, waits, sentences
waits      who waited for whom, by the run's own policy
observer   a live cluster, asked twice a second, whatever the number of viewers
runs       a finished run, in parts that a browser holds
app        the web application: files, JSON, one event stream per viewer
serve      the process
playground experiments in sliders, played by the simulator
static     the page: HTML, CSS and ES modules as they are served
"""
