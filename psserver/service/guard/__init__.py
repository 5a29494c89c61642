"""Who may call a server, what each caller may cost it, and how long certificates last."""
