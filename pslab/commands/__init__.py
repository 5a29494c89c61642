"""The subcommands of ps-lab, one file each; folders say what they look at."""
