"""Large values held against each other."""


def same(got: object, expected: object) -> bool:
    """`assert same(a, b)` in place of `assert a == b` where they are larger than some 10 kB: pytest would look for the
    difference, which takes it minutes of the time that the test has."""
    return bool(got == expected)
