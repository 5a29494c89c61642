"""The update rules, one module each: formula, source, slots."""
