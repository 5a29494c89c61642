"""What commands share: options, process settings, and the task index."""
