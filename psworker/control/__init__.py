"""The control stream to the coordinator: join, ready, commit; grants, cancels and dispositions come back."""
