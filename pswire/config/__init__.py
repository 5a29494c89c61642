"""The experiment file: its sections, and its errors in words."""
