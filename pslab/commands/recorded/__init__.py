"""The subcommands that read what runs left behind."""
