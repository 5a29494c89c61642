"""The subcommands that look at a running job."""
