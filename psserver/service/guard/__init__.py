"""The limits of a server: who may call it, what each caller may cost it, and how long certificates last."""
