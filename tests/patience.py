"""How long a test waits for what is to come before it calls it hung: the one place for all tests.

Two busy cores say nothing about code. A test waits for an event, with this patience; it neither asserts that something
took less time than so much, nor that something has not happened yet because it usually takes longer.
"""

# Seconds. A test's own limit (`timeout` in pyproject.toml) is several times as long.
PATIENCE = 60.0
