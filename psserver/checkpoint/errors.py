"""What can be wrong with a checkpoint."""


class CheckpointError(Exception):
    """It cannot be written, or what is there cannot be used. The text names the file, what was expected and got."""
