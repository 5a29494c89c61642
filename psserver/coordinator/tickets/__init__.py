"""Tickets: their table, what members bring for them, and what workers say of their time."""
