"""What can be wrong with a checkpoint."""


class CheckpointError(Exception):
    """It cannot be written, or what is there cannot be used. The text names the file, what was expected and got."""


class UnwritableError(CheckpointError):
    """The folder takes nothing: the disk is full, read-only or gone. Another try may succeed once it is not."""
