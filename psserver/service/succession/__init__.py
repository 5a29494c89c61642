"""One server after another in one process: servers that stay, and servers that have lost another one."""
