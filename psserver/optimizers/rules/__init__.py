"""The update rules, one file each: formula, source, slots."""
