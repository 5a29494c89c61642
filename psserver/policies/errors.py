"""The one exception of this package."""


class PolicyError(ValueError):
    """A policy, one of its knobs or one of its decisions is not acceptable.

    The text says what was expected, what was got and, where it is not plain, what to do.
    """
