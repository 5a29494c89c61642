"""Who a process is to the others of its cluster: keys, certificates, the names in them, TLS contexts made of them."""
