"""The parts that commands share: options, process settings, and the task index."""
