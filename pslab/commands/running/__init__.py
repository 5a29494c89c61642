"""The subcommands that run experiments."""
