"""The subcommands of ps-lab, one file each."""
