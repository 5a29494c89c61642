"""The experiment file: what it may say, and every finding about it in words."""
