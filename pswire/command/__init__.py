"""What the commands have in common: options, their process, the task that they are started as."""
