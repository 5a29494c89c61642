"""A process on another node: what is sent there, what comes back, and who ends it when the connection does.

blanks      what a command line leaves open until the node is known
files       a task's files, which are gone with the process
wire        what launcher and keeper say to each other
keeper      a command on the node: starts the process and ends it
mirror      a run folder that the launcher cannot see, sent as it grows
kept        the launcher's handle of such a process
"""
