"""Processes on other nodes: the one base behind the engines ssh, Slurm and Ray.

spawn       placeholders, in-memory files and a process group: what starts one process on whatever machine this is
protocol    frames and requests between launcher and keeper
keeper      the command on the node that starts the process, ends it with the connection, and sends its files
places      which process goes to which node
process     the launcher's handle of a process behind a keeper, and the pipe of a command such as ssh
launcher    the base of all remote engines
"""
