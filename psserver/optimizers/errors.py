"""The one exception of this package."""


class OptimizerError(ValueError):
    """A configuration or a call that no optimizer can honour.

    The message names what was expected, what was got and what would be right.
    It is raised before any array is touched, so state is unchanged.
    """
