"""Identities of processes: keys, certificates and the names in them, tokens, TLS contexts."""
